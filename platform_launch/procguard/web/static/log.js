// A worker's log: its end as it grows, older parts on request, and a search of all of it.
// A program's output is only ever shown as textContent: nothing in it is executed or hidden.
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
  const MOST_HITS = 500;

  const text = element("div");
  const hits = element("div");
  hits.hidden = true;
  const older = element("button", message("log.older"));
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
  let open = null; // the unfinished line: { raw, rows }
  let delay = 1000;
  let turn = 0;
  let request = 0; // the newest: answers to earlier ones are ignored
  let sought = null;

  // One line of the log; its number links to it.
  function rows(raw, lineNumber, mark, offset) {
    return logText.rewritten(raw).map((part, index) => {
      const row = element("div", undefined, "line");
      const label = element("a", index ? "" : String(lineNumber));
      label.href = `#L${lineNumber}`;
      if (index || offset === undefined) label.tabIndex = -1; // thousands of tab stops help nobody; those of matches do
      const content = element("span");
      content.append(logText.shown(part, mark));
      row.dataset.line = lineNumber;
      if (offset !== undefined) row.dataset.offset = offset;
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
    const line = element("div", message("log.gap", { size: logText.inBytes(bytes) }), "gap");
    const chunk = element("div");
    chunk.dataset.offset = next;
    chunk.append(line);
    text.append(chunk);
    open = null;
  }

  const ask = (query) => logText.ask(address, { ...query, ...(generation === "" ? {} : { generation }) });

  function listRuns(window) {
    const known = [...run.options].map((option) => option.value).join();
    const wanted = window.generations.map(String).reverse();
    if (known !== wanted.join()) {
      const names = new Map(window.runs.map((one) => [String(one.generation), `${one.number} · ${one.group}`]));
      run.replaceChildren(...wanted.map((one) => new Option(names.get(one) ?? message("log.older_run", { n: one }), one)));
    }
    run.value = generation;
    run.disabled = wanted.length < 2;
    $("#log-download").href = `${address}/download?generation=${generation || 0}`;
    $("#log-download").hidden = wanted.length === 0;
    showNeighbours(window.runs.find((one) => String(one.generation) === generation));
  }

  // Links to the logs of the previous and next rank of the same run.
  let neighboursOf = "";
  async function showNeighbours(known) {
    const links = [$("#log-previous"), $("#log-next")];
    const key = known ? `${known.group}/runs/${known.number}` : "";
    if (key === neighboursOf) return;
    neighboursOf = key;
    links.forEach((link) => { link.hidden = true; });
    if (!known) return;
    const answer = await fetch(`/api/v1/groups/${key}`);
    if (!answer.ok || key !== neighboursOf) return;
    const { places } = await answer.json();
    const own = places.findIndex((place) => place.worker === box.dataset.worker);
    [places[own - 1], places[own + 1]].forEach((place, index) => {
      if (own < 0 || !place) return;
      links[index].hidden = false;
      links[index].href = `/workers/${encodeURIComponent(place.worker)}/log?generation=${known.generation}`;
      links[index].lastElementChild.textContent = message("log.rank", { n: place.rank });
    });
  }

  function showState() {
    older.hidden = begin === 0 || !text.firstChild || !hits.hidden;
    empty.hidden = size > 0;
    empty.textContent = run.options.length ? message("log.empty") : message("log.none");
    status.setAttribute("aria-live", hits.hidden ? "off" : "polite"); // a growing size is not read out
    if (hits.hidden) status.textContent = (following ? "" : `${message("log.paused")} · `) + logText.inBytes(size);
    $("#log-new").hidden = following || !hits.hidden;
    $("#log-follow").setAttribute("aria-pressed", String(following));
    if (following && hits.hidden) pane.scrollTop = pane.scrollHeight;
  }

  // Start over: at the end of the log, or around a position in it.
  async function show(from = { tail: TAIL_LINES }) {
    const mine = (request += 1);
    clearTimeout(turn);
    const window = await ask({ ...from, limit: WINDOW });
    if (mine !== request) return;
    if (newest && window.generations.length) generation = String(window.generation);
    text.replaceChildren();
    open = null;
    begin = window.offset;
    next = window.next_offset;
    size = window.size;
    if (window.text) append(window);
    listRuns(window);
    showState();
    plan(1000);
  }

  async function grow() {
    const [mine, from] = [request, next];
    let grew = false;
    if (following && !document.hidden) {
      const window = await ask({ offset: from, limit: WINDOW });
      if (mine !== request || from !== next) return;
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
      }
      listRuns(window);
      showState();
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
    } catch (error) {
      logText.progress(null);
      status.textContent = error.cause === "refused" ? error.message : message("log.trouble");
      plan(3000);
    }
  }

  function follow(on) {
    following = on;
    if (on && (size - next > FAR_BEHIND || !text.firstChild)) attempt(() => show());
    else if (on) attempt(grow);
    showState();
  }

  // Searches the log from its beginning, part by part, until there are enough matches or the user stops it.
  async function search() {
    const wanted = sought = logText.sought();
    hits.hidden = wanted === null;
    text.hidden = !hits.hidden;
    hits.replaceChildren();
    logText.progress(null);
    if (wanted === null) return showState();
    let [from, last, n, more, stopped] = [0, 0, 0, true, false];
    while (more && n < MOST_HITS && !stopped) {
      stopped = logText.progress(size ? from / size : 0);
      if (stopped) break;
      const window = await ask({ ...wanted.query, offset: from });
      if (wanted !== sought) return;
      for (const match of window.matches) {
        const made = rows(match.text, match.line, match.match ? wanted.mark : null, match.offset);
        if (!match.match) made.forEach((row) => row.classList.add("beside"));
        if (last && match.line > last + 1 && wanted.query.context !== "0") hits.append(element("div", undefined, "apart"));
        last = match.line;
        hits.append(...made);
      }
      n += window.matches.filter((match) => match.match).length;
      [from, size, more] = [window.next_offset, window.size, window.more];
    }
    logText.progress(null);
    status.textContent = logText.outcome(n, more, stopped, size ? from / size : 1);
    if (n === 0 && !more) hits.append(element("p", logText.nothing(), "muted"));
    showState();
  }

  function target(line, mark) {
    for (const row of text.querySelectorAll(".line")) {
      if (Number(row.dataset.line) !== line) continue;
      row.classList.add("target");
      const content = row.lastElementChild;
      if (mark) content.replaceChildren(logText.shown(content.textContent, mark));
    }
    text.querySelector(".target")?.scrollIntoView({ block: "center" });
    pane.focus();
  }

  // Show the surroundings of a match.
  async function goTo(offset, line) {
    const mark = sought?.mark;
    field.value = "";
    $("#log-errors").checked = false;
    await search();
    following = false;
    await show({ offset: Math.max(0, offset - 16384) });
    target(line, mark);
    history.replaceState(null, "", permalink(line));
  }

  // The address of a line of this run, even if a newer run exists when it is opened.
  function permalink(line) {
    return `${location.pathname}?generation=${generation}#L${line}`;
  }

  // Go to the line in the address.
  async function goToNamed() {
    const [, kind, number] = /^#([LB])(\d{1,15})$/.exec(location.hash) ?? [];
    if (!kind) return show();
    following = false;
    if (kind === "L") {
      await show({ line: number });
      return target(Number(number));
    }
    // By its offset: read the part before it to find its line number.
    const from = Math.max(0, Number(number) - 16384);
    await show({ offset: from });
    const part = Number(number) > from ? await ask({ offset: from, limit: Math.max(16, Number(number) - from) }) : null;
    const line = part ? part.line + part.text.split("\n").length - 1 : number === "0" ? 1 : begin;
    target(line);
    history.replaceState(null, "", permalink(line));
  }

  logText.onClick(older, () => attempt(async () => {
    following = false;
    const mine = request;
    const from = Math.max(0, begin - WINDOW);
    const window = await ask({ offset: from, limit: Math.max(16, begin - from) });
    if (mine !== request) return;
    const before = pane.scrollHeight;
    const chunk = element("div");
    chunk.dataset.offset = window.offset;
    const pieces = window.text.replace(/\n$/, "").split("\n");
    pieces.forEach((piece, index) => chunk.append(...rows(piece, window.line + index)));
    begin = from;
    text.prepend(chunk);
    showState();
    pane.scrollTop += pane.scrollHeight - before;
  }));
  pane.addEventListener("scroll", () => {
    if (following && hits.hidden && pane.scrollHeight - pane.scrollTop - pane.clientHeight > 60) {
      following = false;
      showState();
    }
  });
  pane.addEventListener("click", (event) => {
    const row = event.target.closest(".line > a")?.closest(".line");
    if (!row) return;
    event.preventDefault();
    const line = Number(row.dataset.line);
    if (hits.contains(row)) return attempt(() => goTo(Number(row.dataset.offset), line));
    text.querySelectorAll(".target").forEach((one) => one.classList.remove("target"));
    text.querySelectorAll(`[data-line="${line}"]`).forEach((one) => one.classList.add("target"));
    history.replaceState(null, "", permalink(line));
  });
  addEventListener("hashchange", () => attempt(goToNamed));
  $("#log-follow").addEventListener("click", () => follow(!following));
  $("#log-new").addEventListener("click", () => attempt(() => { following = true; return show(); }));
  $("#log-wrap").addEventListener("click", ({ currentTarget }) => {
    const wrap = pane.classList.toggle("nowrap");
    currentTarget.setAttribute("aria-pressed", String(!wrap));
    showState();
  });
  run.addEventListener("change", () => {
    newest = run.selectedIndex === 0;
    generation = run.value;
    following = true;
    attempt(() => show());
    if (sought) attempt(search);
  });
  logText.onSearch(() => attempt(search));

  attempt(goToNamed);
})();
