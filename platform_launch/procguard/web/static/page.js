// What every page does: keeps itself fresh, asks before what cannot be undone, says what was refused.
"use strict";

const words = JSON.parse(document.body.dataset.words);
const $ = (selector, within = document) => within.querySelector(selector);
const say = (key, values = {}) => words[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Morphing keeps what a person does meanwhile: an open dialog, unfolded details. What has the focus is kept up to
// date as well, be it a button or a whole table; nobody types in a part that is fetched again.
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
  !(name === "open" && (node.tagName === "DETAILS" || node.tagName === "DIALOG"));

// Requests: JSON as the API wants it, or the document in data-body. Fields with data-number are numbers, empty
// ones null; those with data-lines are NAME=value, a line each.
htmx.defineExtension("json", {
  onEvent(name, event) {
    if (name === "htmx:configRequest") event.detail.headers["Content-Type"] = "application/json";
  },
  encodeParameters(_xhr, parameters, source) {
    if (source.dataset.body !== undefined) return source.dataset.body;
    const body = {};
    for (const [name, value] of Object.entries(Object.fromEntries(parameters.entries?.() ?? Object.entries(parameters)))) {
      const kind = source.elements?.[name]?.dataset ?? {};
      if (kind.number !== undefined) body[name] = value === "" ? null : Number(value);
      else if (kind.optional !== undefined) body[name] = value.trim() || null;
      else if (kind.flag !== undefined) body[name] = true;
      else if (kind.words !== undefined) body[name] = value.split(/[\s,]+/).filter(Boolean);
      else body[name] = kind.lines === undefined ? value : variables(value);
    }
    for (const field of source.elements ?? []) if (field.dataset?.flag !== undefined) body[field.name] = field.checked;
    if (source.dataset.selection !== undefined) {
      body.workers = [...selected].sort();
      body.group ??= null;
    }
    return JSON.stringify(body);
  },
});

// NAME=value, a line each; another line is told before anything is sent.
document.addEventListener("input", ({ target }) => {
  if (target.dataset.lines === undefined) return;
  const wrong = target.value.split("\n").find((line) => line.trim() && !/^\s*[A-Za-z_]\w{0,127}\s*=/.test(line));
  target.setCustomValidity(wrong === undefined ? "" : say("variables.wrong", { line: wrong.trim() }));
});

function variables(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(lines.map((line) => {
    const [name, ...rest] = line.split("=");
    return [name.trim(), rest.join("=").trim()];
  }));
}

// Notices
function notice(lines, bad = false) {
  const box = element("div", undefined, bad ? "bad" : "");
  const text = element("div");
  text.append(...lines.map((line) => element("p", line)));
  box.append(text);
  const close = element("button", say("dismiss"), "quiet");
  close.type = "button";
  close.addEventListener("click", () => box.remove());
  box.append(close);
  if (bad) box.setAttribute("role", "alert");
  $("#notices").append(box);
  while ($("#notices").children.length > 3) $("#notices").firstChild.remove();
  setTimeout(() => box.remove(), bad ? 15000 : 5000);
}

function refusal(xhr) {
  try {
    const answer = JSON.parse(xhr.responseText);
    if (answer.error) return answer;
  } catch { /* not the API's answer: a proxy's, or none */ }
  return { error: say("failed"), hint: "", problems: [] };
}

const sentence = (text, hint) => `${text}${hint ? `. ${hint[0].toUpperCase()}${hint.slice(1)}` : ""}`;

// A field is called what its label says, where the page has one.
function labelled(path) {
  const [name, ...rest] = path.split(".").filter((part) => !/^(\[key\]|\d+)$/.test(part));
  const label = document.getElementsByName(name)[0]?.labels?.[0];
  return label ? [label.firstChild.textContent.trim(), ...rest].join(": ") : path;
}

function problem({ code, text, hint, values }) {
  if (!words[`problem.${code}`]) return sentence(text, hint);
  const shown = values.field === undefined ? values : { ...values, field: labelled(values.field) };
  return `${say(`problem.${code}`, shown)} ${say(`problem.${code}.hint`, shown)}`;
}

const refused = ({ code, error, hint, values }) => problem({ code, text: error, hint, values });

// An action that takes away what the page is about leads elsewhere: a refresh that meets the gap must not
// lead to "nothing here" first.
let leaving = false;
document.body.addEventListener("htmx:beforeSend", ({ detail }) => {
  if (detail.elt.dataset.go) leaving = true;
});
document.body.addEventListener("htmx:afterRequest", ({ detail }) => {
  const source = detail.requestConfig.elt;
  const verb = detail.requestConfig.verb;
  if (verb === "get" || detail.pathInfo.requestPath.startsWith("/fragments/")) {
    // What the page is about is gone, and the server says so.
    if (detail.xhr.status === 404 && !leaving) location.reload();
    return;
  }
  if (source.dataset.go && !detail.successful) leaving = false;
  const errors = source.dataset.errors && document.getElementById(source.dataset.errors);
  if (errors) errors.replaceChildren();
  if (!detail.successful) {
    const answer = refusal(detail.xhr);
    const lines = answer.problems?.length ? answer.problems.map(problem) : [refused(answer)];
    if (errors) errors.replaceChildren(...lines.map((line) => element("p", line)));
    else notice(lines, true);
    if (detail.xhr.status === 401 && location.pathname !== "/login") logInAgain();
    return;
  }
  if (source.dataset.shows) {
    const place = document.getElementById(source.dataset.shows);
    $("code", place).textContent = JSON.parse(detail.xhr.responseText).token;
    place.hidden = false;
  }
  if (source.dataset.go) return void location.assign(source.dataset.go.replace("{name}", () => source.elements.name.value));
  // What is saved and cannot start is said in one breath.
  const problems = source.id === "settings-form" ? [...document.querySelectorAll("#ranks .problem")] : [];
  if (problems.length) notice([say("saved_cannot_start"), ...problems.map((one) => one.textContent.trim())], true);
  else if (source.dataset.done) notice([source.dataset.done]);
  if (source.dataset.selection !== undefined) select([...selected], false);
  if (source.tagName === "FORM" && source.dataset.keep === undefined) source.reset();
  source.closest("dialog")?.close();
  source.dispatchEvent(new CustomEvent("done"));
  refresh();
});

// Dialogs
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens).showModal();
  if (event.target.closest("[data-closes]")) event.target.closest("dialog").close();
});

let confirmed = null;
document.body.addEventListener("htmx:confirm", (event) => {
  const { elt, question, issueRequest } = event.detail;
  if (elt.dataset.starts && unsaved() && !startAsSaved) return askAboutUnsaved(event);
  startAsSaved = false;
  if (!question) return;
  event.preventDefault();
  const dialog = $("#confirm");
  $("#confirm-title").textContent = say("confirm", { action: elt.dataset.ok });
  $("#confirm-text").textContent = question;
  $("#confirm-ok").textContent = elt.dataset.ok;
  $("#confirm-ok").classList.toggle("danger", elt.dataset.danger !== undefined);
  confirmed = () => (elt.isConnected ? issueRequest(true) : notice([say("overtaken")], true));
  dialog.showModal();
});
$("#confirm-ok")?.addEventListener("click", () => confirmed());

// Language and theme are cookies: the server then sends the page right at once.
function remember(name, value) {
  document.cookie = `${name}=${value}; path=/; max-age=31536000; samesite=lax`;
}
$("#language").addEventListener("change", (event) => {
  remember("language", event.target.value);
  location.reload();
});
// The system's own, then the other of the two, then the first one, then the system's again.
$("#theme").addEventListener("click", () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const other = system === "dark" ? "light" : "dark";
  const next = { "": other, [other]: system, [system]: "" }[root.dataset.theme ?? ""];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  remember("theme", next);
});

// Freshness: the server says that something changed, the page fetches what it shows. A tab nobody looks at
// holds no connection; browsers allow only six to one server.
const QUIET_MS = 15000;
let source = null;
let lastEventAt = 0;
let offlineSince = null;
let pause = 1000;
let again = 0;

function refresh() {
  htmx.trigger(document.body, "changed");
}

function connection(state) {
  const live = $("#live");
  live.dataset.state = state;
  live.lastElementChild.textContent = say(`live.${state}`);
  const offline = state === "offline";
  offlineSince = offline ? offlineSince ?? new Date() : null;
  $("#offline").hidden = !offline;
  document.body.classList.toggle("stale", offline);
  if (offline) $("#offline-since").textContent = say("offline.since", { time: offlineSince.toLocaleTimeString() });
}

// The session has ended: log in, and come back to this page.
function logInAgain() {
  location.assign(`/login?ended=1&next=${encodeURIComponent(location.pathname + location.search)}`);
}

function listen() {
  clearTimeout(again);
  source?.close();
  source = new EventSource("/stream");
  lastEventAt = Date.now();
  const alive = () => {
    lastEventAt = Date.now();
    pause = 1000;
    if ($("#live").dataset.state !== "live") {
      connection("live");
      refresh();
    }
  };
  source.addEventListener("alive", alive);
  source.addEventListener("changed", () => { alive(); refresh(); });
  source.addEventListener("error", lost);
}

function lost() {
  source?.close();
  source = null;
  clearTimeout(again);
  if (document.hidden) return;
  again = setTimeout(async () => {
    // A stream that ended after its time is no trouble; one that cannot be had again is.
    try {
      const answer = await fetch("/api/v1/me");
      if (answer.status === 401) return void logInAgain();
      if (!answer.ok) throw new Error(answer.status);
      listen();
    } catch {
      connection("offline");
      pause = Math.min(pause * 1.5, 5000);
      lost();
    }
  }, offlineSince || pause > 1000 ? pause : 100);
}

if (document.body.dataset.live !== undefined) {
  listen();
  setInterval(() => source && !document.hidden && Date.now() - lastEventAt > QUIET_MS && (connection("offline"), lost()), 2000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      source?.close();
      source = null;
      clearTimeout(again);
    } else if (!source) {
      listen();
      refresh();
    }
  });
  addEventListener("pagehide", () => source?.close());
}

// A request that a person waits for shows that it is under way; refreshing does not.
document.body.addEventListener("htmx:beforeRequest", ({ detail }) => {
  if (detail.requestConfig.triggeringEvent?.type !== "changed") $("#progress")?.classList.add("on");
});
document.body.addEventListener("htmx:afterRequest", () => $("#progress")?.classList.remove("on"));

// The table of workers: what is ticked is kept here, whatever page is shown.
const selected = new Set();
let lastTicked = null;
const boxes = () => [...document.querySelectorAll(".workers td.tick input")];

function select(names, on) {
  for (const name of names) on ? selected.add(name) : selected.delete(name);
  showSelection();
}

function showSelection() {
  const bar = $("#selection");
  if (!bar) return;
  for (const box of boxes()) {
    box.checked = selected.has(box.value);
    box.closest("tr").classList.toggle("ticked", box.checked);
  }
  const all = $("#tick-all");
  if (all) {
    const ticked = boxes().filter((box) => box.checked).length;
    all.checked = ticked > 0 && ticked === boxes().length;
    all.indeterminate = ticked > 0 && !all.checked;
  }
  bar.hidden = selected.size === 0;
  $("#selected-count").textContent = say("selected", { n: selected.size.toLocaleString() });
}

document.addEventListener("click", async ({ target, shiftKey }) => {
  if (target.matches(".workers td.tick input")) {
    const all = boxes();
    const from = shiftKey && lastTicked ? all.findIndex((box) => box.value === lastTicked) : -1;
    const to = all.indexOf(target);
    const range = from < 0 ? [target] : all.slice(Math.min(from, to), Math.max(from, to) + 1);
    lastTicked = target.value;
    select(range.map((box) => box.value), target.checked);
  } else if (target.id === "tick-all") {
    const on = target.checked;
    const query = new URLSearchParams(new FormData($("#filter")));
    const answer = await fetch(`/fragments/names?${query}`).catch(() => null);
    if (answer?.ok) select(await answer.json(), on);
    else showSelection();
  } else if (target.id === "clear-selection") {
    select([...selected], false);
  } else if (target.closest("[data-page]")) {
    $("#page").value = target.closest("[data-page]").dataset.page;
    htmx.trigger("#filter", "submit");
  }
});

// Another filter begins at its first page.
$("#filter")?.addEventListener("input", () => { $("#page").value = "1"; }, true);
$("#filter")?.addEventListener("reset", () => { $("#page").value = "1"; });

// After the page fetched something
function localTimes() {
  for (const time of document.querySelectorAll("time")) {
    const text = new Date(time.dateTime).toLocaleString(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });
    if (time.textContent !== text) time.textContent = text;
  }
}

function groupOptions() {
  const choice = $("#filter-group");
  const names = $("#group-names");
  if (!choice || !names) return;
  const known = [...choice.options].slice(2).map((option) => option.value);
  const wanted = JSON.parse(names.dataset.names);
  if (known.join(" ") === wanted.join(" ")) return;
  const value = choice.value;
  [...choice.options].slice(2).forEach((option) => option.remove());
  choice.append(...wanted.map((name) => new Option(name, name, false, name === value)));
}

// What is chosen from stands first: Enter chooses, and does not cancel.
function focusChoice() {
  if (document.activeElement === $("#move-body")) $("#move-body button:enabled")?.focus();
}

// The state of a group is seen in the tab of the browser too.
const pageTitle = document.title;
function titleState() {
  const state = $("#title-state")?.dataset.state;
  if (state) document.title = `${state} · ${pageTitle}`;
}

// Runs that are ticked stay so while the list is fetched again.
const pickedRuns = new Set();
document.addEventListener("change", ({ target }) => {
  if (target.matches(".runs td.tick input")) target.checked ? pickedRuns.add(target.value) : pickedRuns.delete(target.value);
});
function showPickedRuns() {
  for (const box of document.querySelectorAll(".runs td.tick input")) box.checked = pickedRuns.has(box.value);
}

function afterSwap() {
  titleState();
  showPickedRuns();
  focusChoice();
  localTimes();
  groupOptions();
  showSelection();
}
document.body.addEventListener("htmx:afterSwap", afterSwap);
afterSwap();

// A group's settings: what is not saved, and what somebody else saved meanwhile.
const settings = $("#settings-form");
const content = () => new URLSearchParams(new FormData(settings)).toString();
let kept = settings && content();
let startAsSaved = false;

function unsaved() {
  return Boolean(settings) && content() !== kept;
}

// A start uses what is saved: somebody who has typed something else is asked first.
function askAboutUnsaved(event) {
  event.preventDefault();
  const { elt } = event.detail;
  const dialog = $("#unsaved-start");
  const choose = (id, act) => {
    const button = $(`#${id}`);
    button.textContent = button.dataset[elt.dataset.starts];
    button.onclick = () => { dialog.close(); act(); };
  };
  const go = () => {
    startAsSaved = true;
    document.getElementById(elt.id)?.click();
  };
  choose("start-as-saved", go);
  choose("save-and-start", () => {
    settings.addEventListener("done", go, { once: true });
    settings.requestSubmit();
  });
  dialog.showModal();
}

if (settings) {
  addEventListener("beforeunload", (event) => {
    if (unsaved() && !leaving) event.preventDefault();
  });
  let saved = $("#saved").dataset.settings;
  let members = $("#saved").dataset.members;
  let ours = false;
  const compare = () => {
    const changed = unsaved();
    for (const id of ["unsaved", "settings-undo"]) if ($(`#${id}`)) $(`#${id}`).hidden = !changed;
  };
  settings.addEventListener("input", compare);
  settings.addEventListener("reset", () => setTimeout(compare));
  settings.addEventListener("done", () => {
    kept = content();
    ours = true;
    for (const field of settings.elements) { // so that "undo" goes back to what is saved now
      if (field.tagName === "SELECT") for (const option of field.options) option.defaultSelected = option.selected;
      else if (field.name) field.defaultValue = field.value;
    }
    compare();
  });
  document.body.addEventListener("htmx:afterSwap", ({ detail }) => {
    if (detail.target.id !== "group") return;
    const now = $("#saved").dataset;
    if (now.settings !== saved) {
      if (!ours) $("#elsewhere").hidden = false;
      saved = now.settings;
      ours = false;
    }
    if (now.members !== members) {
      members = now.members;
      htmx.trigger(document.body, "members");
    }
  });
}

// Pages begin inert: before the scripts ran a click would be lost, and a form would send itself, a password in its
// address. htmx, whose listener comes first, has taken over by now.
document.addEventListener("DOMContentLoaded", () => {
  for (const part of document.querySelectorAll("[inert]")) part.inert = false;
  $("[autofocus]")?.focus();
});
