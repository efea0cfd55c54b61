"""The page at ``/docs``: reads ``/openapi.json`` and shows it. It loads nothing from anywhere else.

Owns: the page. Does not own: what it shows.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DOCS_PAGE"]

DOCS_PAGE: Final = b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Holdfast commit log: API</title>
<style>
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
  body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  details { border: 1px solid #8886; border-radius: .5rem; margin: .5rem 0; padding: .5rem 1rem; }
  summary { cursor: pointer; display: flex; gap: 1rem; flex-wrap: wrap; }
  code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
  pre { overflow: auto; background: #8882; padding: .75rem; border-radius: .5rem; }
  .method { font-weight: 700; min-width: 4rem; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884; }
</style>
</head>
<body>
<h1 id="title">API</h1>
<p id="about"></p>
<main id="routes"><p>Reading <a href="openapi.json">openapi.json</a>.</p></main>
<h2>Types</h2>
<div id="types"></div>
<script>
"use strict";
function element(name, text, parent) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
function rows(parent, titles, lines) {
  const table = element("table", undefined, parent);
  const head = element("tr", undefined, table);
  titles.forEach(title => element("th", title, head));
  lines.forEach(line => {
    const row = element("tr", undefined, table);
    line.forEach(cell => element("td", cell, row));
  });
}
function show(path, method, operation, parent) {
  const box = element("details", undefined, parent);
  const line = element("summary", undefined, box);
  element("code", method.toUpperCase(), line).className = "method";
  element("code", path, line);
  element("span", operation.summary, line);
  if (operation.description) element("p", operation.description, box);
  if (operation.parameters) {
    element("h4", "Parameters", box);
    rows(box, ["name", "in", "required", "what"],
      operation.parameters.map(p => [p.name, p.in, p.required ? "yes" : "no", p.description]));
  }
  if (operation.requestBody) {
    element("h4", "Body", box);
    element("pre", JSON.stringify(operation.requestBody.content, null, 2), box);
  }
  element("h4", "Answers", box);
  rows(box, ["status", "what", "media types"], Object.entries(operation.responses).map(
    ([status, answer]) => [status, answer.description, Object.keys(answer.content).join(", ")]));
}
fetch("openapi.json").then(answer => answer.json()).then(api => {
  document.getElementById("title").textContent = api.info.title + " " + api.info.version;
  document.getElementById("about").textContent = api.info.summary + ".";
  const main = document.getElementById("routes");
  main.replaceChildren();
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, operation] of Object.entries(methods)) show(path, method, operation, main);
  const types = document.getElementById("types");
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    const box = element("details", undefined, types);
    element("code", name, element("summary", undefined, box));
    if (schema.description) element("p", schema.description, box);
    element("pre", JSON.stringify(schema, null, 2), box);
  }
}).catch(error => { document.getElementById("routes").textContent = "openapi.json could not be read: " + error; });
</script>
</body>
</html>
"""
