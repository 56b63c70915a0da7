// A worker's log: its end as it grows, older parts on request, and a search over all of it.
// What a program wrote is text: it only ever becomes textContent, and nothing in it is carried out or hidden.
"use strict";
(() => {
  const box = $("#log");
  const pane = $("#log-lines");
  const status = $("#log-status");
  const empty = $("#log-empty");
  const run = $("#log-run");
  const field = $("#log-text");
  const address = `/api/v1/workers/${encodeURIComponent(box.dataset.worker)}/log`;
  const WINDOW = 262144;
  const TAIL_LINES = 1000;
  const MOST_LINES = 6000;
  const FAR_BEHIND = 1048576;

  const text = element("div");
  const hits = element("div");
  hits.hidden = true;
  const older = element("button", say("log.older"));
  older.type = "button";
  older.hidden = true;
  pane.append(older, text, hits);

  let generation = box.dataset.generation;
  let newest = generation === "";
  let following = true;
  let begin = 0;
  let next = 0;
  let size = 0;
  let number = 1;
  let open = null; // the line that has not ended yet: { raw, rows }
  let delay = 1000;
  let turn = 0;
  let sought = "";

  const SILENT_ESCAPES = /\x1b\[[0-9;:]*[mK]/g; // colours, and "clear to the end of the line"
  const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/gu;

  const NAMES = ("NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI "
    + "DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US").split(" ");

  function symbol(character) {
    const code = character.codePointAt(0);
    if (code < 0x20) return NAMES[code];
    return code === 0x7f ? "DEL" : `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  }

  // Characters that would not be seen, or would turn the text around, are shown by their names.
  function shown(raw, wanted) {
    const made = document.createDocumentFragment();
    const plain = (part) => {
      let place = 0;
      for (const found of part.matchAll(UNSEEN)) {
        made.append(part.slice(place, found.index), element("span", symbol(found[0]), "symbol"));
        place = found.index + found[0].length;
      }
      made.append(part.slice(place));
    };
    if (!wanted) return plain(raw), made;
    const pattern = new RegExp(wanted.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "gi");
    let place = 0;
    for (const found of raw.matchAll(pattern)) {
      plain(raw.slice(place, found.index));
      made.append(element("mark", found[0]));
      place = found.index + found[0].length;
    }
    plain(raw.slice(place));
    return made;
  }

  // One line of the log; a progress bar's rewriting of it shows as rows below each other.
  function rows(raw, lineNumber, wanted, link) {
    const parts = raw.replace(SILENT_ESCAPES, "").split("\r");
    if (parts.length > 1 && parts.at(-1) === "") parts.pop();
    return parts.map((part, index) => {
      const row = element("div", undefined, "line");
      const label = element(link ? "a" : "i", index ? "" : String(lineNumber));
      if (link) label.href = "#log";
      const content = element("span");
      content.append(shown(part, wanted));
      row.dataset.line = lineNumber;
      row.append(label, content);
      return row;
    });
  }

  function append(window) {
    const chunk = element("div");
    chunk.dataset.offset = window.offset;
    text.append(chunk);
    if (!open) number = window.line;
    const pieces = window.text.split("\n");
    pieces.forEach((piece, index) => {
      const raw = (open?.raw ?? "") + piece;
      const fresh = raw === "" && index === pieces.length - 1 ? [] : rows(raw, number);
      if (open) {
        open.rows[0]?.before(...fresh);
        open.rows.forEach((row) => row.remove());
        if (!open.rows.length) chunk.append(...fresh);
      } else {
        chunk.append(...fresh);
      }
      open = index === pieces.length - 1 && raw !== "" ? { raw, rows: fresh } : null;
      if (index < pieces.length - 1) number += 1;
    });
    while (text.children.length > 1 && text.querySelectorAll(".line").length > MOST_LINES) {
      text.firstChild.remove();
      begin = Number(text.firstChild.dataset.offset);
    }
  }

  function gap(bytes) {
    const line = element("div", say("log.gap", { size: inBytes(bytes) }), "gap");
    const chunk = element("div");
    chunk.dataset.offset = next;
    chunk.append(line);
    text.append(chunk);
    open = null;
  }

  function inBytes(bytes) {
    const units = ["B", "KiB", "MiB", "GiB"];
    let unit = 0;
    for (; bytes >= 1024 && unit < 3; unit += 1) bytes /= 1024;
    return `${bytes.toLocaleString(document.documentElement.lang, { maximumFractionDigits: unit ? 1 : 0 })} ${units[unit]}`;
  }

  async function ask(query) {
    const given = new URLSearchParams({ ...query, ...(generation === "" ? {} : { generation }) });
    const answer = await fetch(`${address}?${given}`);
    if (answer.status === 401) location.reload();
    if (!answer.ok) throw new Error(answer.status);
    return answer.json();
  }

  function listRuns(window) {
    const known = [...run.options].map((option) => option.value).join();
    const wanted = window.generations.map(String).reverse();
    if (known !== wanted.join()) {
      run.replaceChildren(...wanted.map((one) => new Option(one, one)));
    }
    run.value = generation;
    run.disabled = wanted.length < 2;
    $("#log-download").href = `${address}/download?generation=${generation || 0}`;
    $("#log-download").hidden = wanted.length === 0;
  }

  function sayState() {
    older.hidden = begin === 0 || !text.firstChild || !hits.hidden;
    empty.hidden = size > 0;
    empty.textContent = run.options.length ? say("log.empty") : say("log.none");
    status.setAttribute("aria-live", hits.hidden ? "off" : "polite"); // a size that grows is not read out
    if (hits.hidden) status.textContent = (following ? "" : `${say("log.paused")} · `) + inBytes(size);
    $("#log-new").hidden = following || !hits.hidden;
    $("#log-follow").setAttribute("aria-pressed", String(following));
    if (following && hits.hidden) pane.scrollTop = pane.scrollHeight;
  }

  // Begin anew: at the end of the log, or around a place in it.
  async function show(offset) {
    clearTimeout(turn);
    const window = await ask(offset === undefined ? { tail: TAIL_LINES, limit: WINDOW } : { offset, limit: WINDOW });
    if (newest && window.generations.length) generation = String(window.generation);
    text.replaceChildren();
    open = null;
    begin = window.offset;
    next = window.next_offset;
    size = window.size;
    if (window.text) append(window);
    listRuns(window);
    sayState();
    plan(1000);
  }

  async function grow() {
    let grew = false;
    if (following && !document.hidden) {
      const window = await ask({ offset: next, limit: WINDOW });
      const latest = window.generations.at(-1);
      if (newest && latest !== undefined && String(latest) !== generation) {
        generation = String(latest);
        return show();
      }
      size = window.size;
      if (size - next > FAR_BEHIND || size < next) return show();
      grew = window.next_offset > next;
      if (grew) {
        if (window.offset > next && next > 0) gap(window.offset - next);
        next = window.next_offset;
        append(window);
        if (!hits.hidden && window.text.toLowerCase().includes(sought.toLowerCase())) await search();
      }
      listRuns(window);
      sayState();
    }
    plan(grew ? 1000 : Math.min(delay * 1.25, 3000));
  }

  function plan(after) {
    delay = after;
    clearTimeout(turn);
    turn = setTimeout(() => attempt(grow), after);
  }

  async function attempt(work) {
    try {
      await work();
    } catch {
      status.textContent = say("log.trouble");
      plan(3000);
    }
  }

  function follow(on) {
    following = on;
    if (on && (size - next > FAR_BEHIND || !text.firstChild)) attempt(show);
    else if (on) attempt(grow);
    sayState();
  }

  async function search() {
    sought = field.value.trim();
    hits.hidden = sought === "";
    text.hidden = !hits.hidden;
    hits.replaceChildren();
    if (sought === "") return sayState();
    const asked = sought;
    const window = await ask({ search: asked });
    if (asked !== sought) return;
    hits.replaceChildren();
    for (const match of window.matches) {
      const made = rows(match.text, match.line, asked, true);
      made.forEach((row) => { row.dataset.offset = match.offset; });
      hits.append(...made);
    }
    const n = window.matches.length;
    status.textContent = window.more ? say("log.more", { n }) : n === 1 ? say("log.match") : say("log.matches", { n });
    if (n === 0) hits.append(element("p", say("log.no_match", { text: asked }), "muted"));
    sayState();
  }

  // From a hit to its surroundings.
  async function goTo(offset, line) {
    const wanted = sought;
    field.value = "";
    await search();
    following = false;
    await show(Math.max(0, offset - 16384));
    for (const row of text.querySelectorAll(".line")) {
      if (Number(row.dataset.line) !== line) continue;
      row.classList.add("target");
      const content = row.lastElementChild;
      content.replaceChildren(shown(content.textContent, wanted));
    }
    text.querySelector(".target")?.scrollIntoView({ block: "center" });
    pane.focus();
  }

  older.addEventListener("click", () => attempt(async () => {
    following = false;
    const from = Math.max(0, begin - WINDOW);
    const window = await ask({ offset: from, limit: Math.max(16, begin - from) });
    const before = pane.scrollHeight;
    const chunk = element("div");
    chunk.dataset.offset = window.offset;
    const pieces = window.text.replace(/\n$/, "").split("\n");
    pieces.forEach((piece, index) => chunk.append(...rows(piece, window.line + index)));
    begin = from;
    text.prepend(chunk);
    sayState();
    pane.scrollTop += pane.scrollHeight - before;
  }));
  pane.addEventListener("scroll", () => {
    if (following && hits.hidden && pane.scrollHeight - pane.scrollTop - pane.clientHeight > 60) {
      following = false;
      sayState();
    }
  });
  hits.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    const row = link.closest(".line");
    attempt(() => goTo(Number(row.dataset.offset), Number(row.dataset.line)));
  });
  $("#log-follow").addEventListener("click", () => follow(!following));
  $("#log-new").addEventListener("click", () => attempt(() => { following = true; return show(); }));
  $("#log-wrap").addEventListener("click", ({ currentTarget }) => {
    const wrap = pane.classList.toggle("nowrap");
    currentTarget.setAttribute("aria-pressed", String(!wrap));
    sayState();
  });
  run.addEventListener("change", () => {
    newest = run.selectedIndex === 0;
    generation = run.value;
    following = true;
    attempt(show);
    if (sought) attempt(search);
  });
  let typing = 0;
  field.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => attempt(search), 250);
  });
  $("#log-search").addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(search);
  });

  attempt(show);
})();
