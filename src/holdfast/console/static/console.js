// The console works without this script. It refreshes the live parts of a page, writes times in the viewer's zone, copies,
// and switches the theme.

const REFRESH_MS = 2000;
const SLOW_REFRESH_MS = 10000;
const ANSWER_MS = 10000;
const OLD_MS = 5000;
const live = document.getElementById("live");
const main = document.getElementById("main");
let failures = 0;
let answeredAt = Date.now();
let isLoggedOut = false;
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

function hasLiveParts(page) {
  return page.querySelector("[data-live]:not(#state)") !== null;
}

function writeState(text, isGood) {
  if (live && live.textContent !== text) live.textContent = text;
  if (live) live.classList.toggle("bad", !isGood);
}

// A page says "live" only while answers come; else for how long none has come.
function showState() {
  const old = Date.now() - answeredAt;
  const seconds = Math.floor(old / 1000);
  const age = `last answer ${seconds < 120 ? `${seconds} s` : `${Math.floor(seconds / 60)} min`} ago`;
  if (isLoggedOut) writeState("logged out: load this page again to log in", false);
  else if (failures > 0) writeState(`the console does not answer; asking again; ${age}`, false);
  else if (document.querySelector("#state .notice.bad")) writeState("the service does not answer", false);
  else if (!hasLiveParts(document)) writeState("", true);
  else if (old < OLD_MS) writeState("live", true);
  else writeState(age, old < SLOW_REFRESH_MS + OLD_MS);
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

// Two rows may have a link to the same key: the first link of a row tells them apart.
function placeOf(node) {
  const first = node.closest("tr")?.querySelector("a, button, summary");
  return `${first ? nameOf(first) : ""} ${nameOf(node)}`;
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
    const held = part.contains(document.activeElement) ? placeOf(document.activeElement) : null;
    part.innerHTML = newer.innerHTML;
    if (held === null) continue;
    // By what it leads to, not by its place: Enter must not open what has moved there.
    const same = [...part.querySelectorAll("a, button, summary")].find((node) => placeOf(node) === held);
    if (!same) part.tabIndex = -1;
    (same ?? part).focus({ preventScroll: true });
  }
}

// What a page shows may be deleted, or not be served for a time: then the page says why, until it is there again.
function replaceMain(fresh) {
  const [wasGone, isGone] = [document, fresh].map((page) => page.querySelector("[data-gone]") !== null);
  if (wasGone === isGone || !(isGone || hasLiveParts(fresh))) return;
  main.innerHTML = fresh.getElementById("main").innerHTML;
  writeTimes(main);
}

async function refresh() {
  const began = performance.now();
  const limit = new AbortController();
  const tooLong = setTimeout(() => limit.abort(), ANSWER_MS);
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html", "Holdfast-Refresh": "1" }, redirect: "error", cache: "no-store", signal: limit.signal });
    isLoggedOut = response.status === 401;
    if (response.status >= 500) throw new Error(response.statusText);
    if (!isLoggedOut) {
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      replaceMain(fresh);
      replaceParts(fresh);
    }
    failures = 0;
    answeredAt = Date.now();
  } catch {
    failures += 1;
  }
  clearTimeout(tooLong);
  showState();
  if (!isLoggedOut) setTimeout(next, pauseAfter(performance.now() - began));
}

// A slow answer costs the service more, so it is asked for less often; one that did not come costs nothing.
function pauseAfter(took) {
  if (failures > 0) return failures > 5 ? SLOW_REFRESH_MS : REFRESH_MS;
  return Math.min(SLOW_REFRESH_MS, Math.max(REFRESH_MS, 10 * took));
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

// On a phone the menu is one row that scrolls: the page that is open is in its view.
const menu = document.querySelector(".sections");
const opened = menu?.querySelector("[aria-current]");
if (opened) menu.scrollLeft = opened.offsetLeft - menu.offsetLeft - (menu.clientWidth - opened.offsetWidth) / 2;

writeTimes(document);
showState();
if (document.querySelector("[data-live]")) {
  setTimeout(next, REFRESH_MS);
  setInterval(showState, 1000);
}
