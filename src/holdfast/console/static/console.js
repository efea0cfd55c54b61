// The console works without this script. It refreshes the live parts of a page, writes times in the viewer's zone, copies,
// and switches the theme.

const REFRESH_MS = 2000;
const SLOW_REFRESH_MS = 10000;
const WAITING_MS = 5000;
const live = document.getElementById("live");
const isLive = document.querySelector("[data-live]:not(#state)") !== null;
let failures = 0;
document.documentElement.classList.add("scripted");

const formats = {
  same: new Intl.DateTimeFormat(undefined, { timeStyle: "medium" }),
  other: new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" }),
};

function writeTimes(within) {
  const today = new Date().toDateString();
  for (const node of within.querySelectorAll("time[datetime]")) {
    const moment = new Date(node.dateTime);
    node.textContent = (moment.toDateString() === today ? formats.same : formats.other).format(moment);
  }
}

function writeState(text, isGood) {
  if (live && live.textContent !== text) live.textContent = text;
  if (live) live.classList.toggle("bad", !isGood);
}

// What the viewer is using stays as it is: a field, an opened detail, selected text.
function isInUse(part) {
  const active = document.activeElement;
  if (part.contains(active) && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName)) return true;
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && part.contains(selection.anchorNode);
}

function nameOf(node) {
  return `${node.tagName} ${node.getAttribute("href") ?? node.dataset.copy ?? node.textContent}`;
}

function replaceParts(fresh) {
  for (const part of document.querySelectorAll("[data-live]")) {
    const newer = fresh.getElementById(part.id);
    if (newer === null || isInUse(part)) continue;
    writeTimes(newer);
    if (newer.innerHTML === part.innerHTML) continue;
    for (const opened of part.querySelectorAll("details[open][id]")) {
      newer.querySelector(`details[id="${CSS.escape(opened.id)}"]`)?.setAttribute("open", "");
    }
    const held = part.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    part.innerHTML = newer.innerHTML;
    if (held === null) continue;
    // By what it leads to, not by its place: Enter must not open what has moved there.
    const same = [...part.querySelectorAll("a, button, summary")].find((node) => nameOf(node) === held);
    if (!same) part.tabIndex = -1;
    (same ?? part).focus({ preventScroll: true });
  }
}

async function refresh() {
  const began = performance.now();
  const waiting = setTimeout(() => writeState("waiting for the console", false), WAITING_MS);
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html", "Holdfast-Refresh": "1" }, redirect: "error", cache: "no-store" });
    if (response.status === 401) {
      clearTimeout(waiting);
      return writeState("logged out: load this page again to log in", false);
    }
    replaceParts(new DOMParser().parseFromString(await response.text(), "text/html"));
    failures = 0;
    writeState(isLive ? "live" : "", true);
  } catch {
    failures += 1;
    writeState("the console does not answer; asking again", false);
  }
  clearTimeout(waiting);
  const took = performance.now() - began;
  setTimeout(next, failures > 5 ? SLOW_REFRESH_MS : Math.min(SLOW_REFRESH_MS, Math.max(REFRESH_MS, 10 * took)));
}

function next() {
  if (document.hidden) document.addEventListener("visibilitychange", refresh, { once: true });
  else refresh();
}

const themes = ["system", "light", "dark"];
const theme = document.getElementById("theme");
function showTheme(name) {
  document.documentElement.dataset.theme = name;
  const said = name === "system" ? "follow the system" : name;
  theme.textContent = { system: "◐", light: "☀", dark: "☾" }[name];
  theme.setAttribute("aria-label", `Theme: ${said}`);
  theme.title = `Theme: ${said}`;
}
if (theme) {
  showTheme(document.documentElement.dataset.theme);
  theme.addEventListener("click", () => {
    const name = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
    document.cookie = `holdfast_theme=${name}; path=/; max-age=31536000; samesite=strict`;
    showTheme(name);
  });
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button[data-copy]");
  if (!button) return;
  button.dataset.label ??= button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not copied";
  }
  setTimeout(() => { button.textContent = button.dataset.label; }, 1500);
});

// A choice that changes what is shown is made at once.
document.addEventListener("change", (event) => {
  if (event.target.matches?.("form[data-auto] select, form[data-auto] input[type=checkbox]")) event.target.form.requestSubmit();
});

writeTimes(document);
writeState(isLive ? "live" : "", true);
if (document.querySelector("[data-live]")) setTimeout(next, REFRESH_MS);
