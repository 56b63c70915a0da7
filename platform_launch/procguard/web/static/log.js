// The log of a worker, or those of a run's ranks: the end as it grows, earlier parts on request, a search from the
// beginning. A single log has line numbers, which are links; the lines of several ranks have times and names.
"use strict";
(() => {
  const box = $("#log");
  const pane = $("#log-lines");
  const status = $("#log-status");
  const empty = $("#log-empty");
  const run = $("#log-run");
  const worker = box.dataset.worker; // undefined: a group's
  const address = worker ? `/api/v1/workers/${encodeURIComponent(worker)}/log` : `/api/v1/groups/${encodeURIComponent(box.dataset.group)}/log`;
  const PAGE = 500;
  const MOST_LINES = 6000;
  const AGAIN_MS = 1000;
  const older = element("button", message("log.older"));
  const further = element("button", message("log.further"));
  const text = element("div");
  for (const button of [older, further]) [button.type, button.hidden] = ["button", true];
  pane.append(older, text, further);

  let before = null; // where earlier lines end
  let after = null; // where later lines begin
  let ended = false;
  let chosen = box.dataset.run; // of a group: the run; of a worker: the generation, empty until one is known
  let newest = chosen === "";
  let generation = 0;
  let size = 0;
  let following = true;
  let turn = 0;
  let request = 0; // the newest: answers to earlier ones are ignored
  let sought = null;
  let more = false; // whether what follows can be read at once
  let searching = false;
  let halted = false;
  let share = 0; // of the logs that has been searched
  let open = []; // the rows of a last line that is not finished, and comes again
  let last = 0; // the number of the last line

  const time = new Intl.DateTimeFormat(document.documentElement.lang, { timeStyle: "medium", hourCycle: "h23" });

  function ask(query) {
    const ranks = $("#log-ranks")?.value.trim();
    const which = chosen === "" ? {} : { [worker ? "generation" : "run"]: chosen };
    return logText.ask(address, { limit: PAGE, ...(ranks ? { ranks } : {}), ...sought?.query, ...query, ...which });
  }

  const numbered = (line) => Boolean(worker && line.number);

  function row(line, part, index, target) {
    const made = element("div", undefined, line.match ? "line" : "line beside");
    if (target) made.classList.add("target");
    const link = element("a", index ? "" : numbered(line) ? String(line.number) : `${line.rank} · ${line.worker}`);
    link.href = numbered(line) ? permalink(line.number)
      : `/workers/${encodeURIComponent(line.worker)}/log?generation=${generation}#B${line.offset}`;
    if (index || !sought) link.tabIndex = -1; // thousands of tab stops help nobody; those of matches do
    const content = element("span");
    content.append(logText.shown(part, line.match ? sought?.mark : null));
    made.dataset.place = line.place;
    if (worker) [made.dataset.line, made.dataset.offset] = [line.number, line.offset];
    else made.append(element("i", index ? "" : time.format(new Date(line.at))));
    made.append(link, content);
    return made;
  }

  // The rows of a page. Lines between two that are not there were dropped, or do not match.
  function rows({ lines, target }, previous = 0) {
    return lines.flatMap((line) => {
      const made = logText.rewritten(line.text).map((part, index) => row(line, part, index, line.place === target));
      const left = numbered(line) && previous ? line.number - previous - 1 : 0;
      previous = line.number;
      if (left > 0 && !sought) made.unshift(element("div", message("log.gap", { n: left.toLocaleString() }), "gap"));
      else if (left > 0 && sought.query.context !== "0") made.unshift(element("div", undefined, "apart"));
      return made;
    });
  }

  function append(page) {
    open.forEach((one) => one.remove());
    const made = rows(page, open.length ? last - 1 : last);
    text.append(...made);
    last = page.lines.at(-1)?.number ?? last;
    open = made.filter((one) => one.dataset.place === page.after);
  }

  function update(page) {
    [ended, generation, after, more, size] = [page.ended ?? false, page.generation, page.after, page.more, page.size];
    share = size ? page.read / size : 1;
    if (worker) listRuns(page);
  }

  function showState() {
    older.hidden = before === null || sought !== null;
    empty.hidden = text.childElementCount > 0 || searching || more;
    const none = worker && !run.options.length ? message("log.none") : message("log.empty");
    empty.textContent = sought ? logText.nothing() : none;
    const n = text.querySelectorAll(".line:not(.beside)").length;
    const paused = following || ended ? "" : message("log.paused");
    if (sought && !searching) status.textContent = logText.outcome(n, more, halted, share);
    else if (!sought) status.textContent = [paused, size ? logText.inBytes(size) : ""].filter(Boolean).join(" · ");
    status.setAttribute("aria-live", sought ? "polite" : "off"); // a growing size is not read out
    further.hidden = !more || searching || !sought;
    $("#log-new").hidden = following || sought !== null;
    $("#log-follow").setAttribute("aria-pressed", String(following));
    if (following && !sought) pane.scrollTop = pane.scrollHeight;
  }

  // Searches the logs part by part, until there are enough matches or the user stops it.
  async function search() {
    const mine = request;
    const enough = text.childElementCount + PAGE;
    [searching, more, halted] = [true, true, false];
    while (more && text.childElementCount < enough) {
      halted = logText.progress(share);
      if (halted) break;
      const page = await ask({ after });
      if (mine !== request) return;
      append(page);
      update(page);
      showState();
    }
    searching = false;
    logText.progress(null);
    showState();
    if (!more && !ended) plan();
  }

  async function show(query = {}) {
    const mine = (request += 1);
    clearTimeout(turn);
    sought = logText.sought();
    logText.progress(null);
    [searching, more, share, open, last] = [false, false, 0, [], 0];
    if (sought) {
      text.replaceChildren();
      [before, after] = [null, ""];
      return search();
    }
    const page = await ask(query);
    if (mine !== request) return;
    text.replaceChildren();
    append(page);
    update(page);
    before = page.before;
    showState();
    text.querySelector(".target")?.scrollIntoView({ block: "center" });
    plan();
  }

  // Fetch new lines; of a worker's newest run also the lines of the next one.
  async function grow() {
    if (document.hidden || !(following || sought) || after === null || searching) return plan();
    const mine = request;
    const page = await ask({ after });
    if (mine !== request) return;
    const latest = page.generations?.at(-1);
    if (newest && !page.lines.length && latest > page.generation) {
      chosen = String(latest);
      return show();
    }
    append(page);
    while (!sought && text.childElementCount > MOST_LINES) {
      text.firstChild.remove();
      before = text.firstChild.dataset.place ?? before;
    }
    update(page);
    const behind = more && !sought;
    showState();
    if (!ended || behind) plan(behind ? 0 : AGAIN_MS);
  }

  function plan(wait = AGAIN_MS) {
    clearTimeout(turn);
    turn = setTimeout(() => attempt(grow), wait);
  }

  async function attempt(work) {
    try {
      await work();
    } catch (error) {
      searching = false;
      logText.progress(null);
      status.textContent = error.cause === "refused" ? error.message : message("log.trouble");
      if (error.cause !== "refused") plan(3000);
    }
  }

  // A worker's runs, and the logs of the previous and next rank of this one.
  let neighboursOf = "";
  async function listRuns({ generations, runs }) {
    const wanted = generations.map(String).reverse();
    if ([...run.options].map((option) => option.value).join() !== wanted.join()) {
      const names = new Map(runs.map((one) => [String(one.generation), `${one.number} · ${one.group}`]));
      run.replaceChildren(...wanted.map((one) => new Option(names.get(one) ?? message("log.older_run", { n: one }), one)));
    }
    if (chosen === "" && wanted.length) chosen = String(generation);
    run.value = chosen;
    run.disabled = wanted.length < 2;
    $("#log-download").href = `${address}/download?generation=${chosen || 0}`;
    $("#log-download").hidden = wanted.length === 0;
    const known = runs.find((one) => String(one.generation) === chosen);
    const key = known ? `${known.group}/runs/${known.number}` : "";
    if (key === neighboursOf) return;
    neighboursOf = key;
    const links = [$("#log-previous"), $("#log-next")];
    links.forEach((link) => { link.hidden = true; });
    if (!known) return;
    const answer = await fetch(`/api/v1/groups/${key}`);
    if (!answer.ok || key !== neighboursOf) return;
    const { places } = await answer.json();
    const own = places.findIndex((place) => place.worker === worker);
    [places[own - 1], places[own + 1]].forEach((place, index) => {
      if (own < 0 || !place) return;
      links[index].hidden = false;
      links[index].href = `/workers/${encodeURIComponent(place.worker)}/log?generation=${known.generation}`;
      links[index].lastElementChild.textContent = message("log.rank", { n: place.rank });
    });
  }

  // The address of a line of this run, even if a newer run exists when it is opened.
  function permalink(number) {
    return `${location.pathname}?generation=${chosen}#L${number}`;
  }

  // Show what is around a line, without the search that found it.
  async function goTo(query) {
    const mark = sought?.mark;
    following = false;
    $("#log-text").value = "";
    $("#log-errors").checked = false;
    await show(query);
    const target = text.querySelector(".target");
    if (!target) return;
    if (mark) target.lastElementChild.replaceChildren(logText.shown(target.lastElementChild.textContent, mark));
    if (worker) history.replaceState(null, "", permalink(target.dataset.line));
    pane.focus();
  }

  // Go to the line in the address, by its number or offset, or to the cause of a group's failure.
  function begin() {
    const [, kind, number] = /^#([LB])(\d{1,15})$/.exec(location.hash) ?? [];
    if (kind && worker) return goTo(kind === "L" ? { line: number } : { offset: number });
    if (location.hash === "#cause" && box.dataset.causeRank) return goToCause();
    return show();
  }

  function goToCause() {
    location.hash = "cause";
    return goTo({ rank: box.dataset.causeRank, line: box.dataset.causeLine });
  }

  logText.onClick(older, () => attempt(async () => {
    following = false;
    const mine = request;
    const page = await ask({ before });
    if (mine !== request) return;
    const height = pane.scrollHeight;
    text.prepend(...rows(page));
    before = page.before;
    showState();
    pane.scrollTop += pane.scrollHeight - height;
  }));
  logText.onClick(further, () => attempt(search));
  pane.addEventListener("scroll", () => {
    if (following && !sought && pane.scrollHeight - pane.scrollTop - pane.clientHeight > 60) {
      following = false;
      showState();
    }
  });
  pane.addEventListener("click", (event) => {
    const line = event.target.closest(".line > a")?.closest(".line");
    if (!worker || !line) return;
    event.preventDefault();
    if (sought) return attempt(() => goTo({ offset: line.dataset.offset }));
    text.querySelectorAll(".target").forEach((one) => one.classList.remove("target"));
    text.querySelectorAll(`[data-line="${line.dataset.line}"]`).forEach((one) => one.classList.add("target"));
    history.replaceState(null, "", permalink(line.dataset.line));
  });
  addEventListener("hashchange", () => worker && attempt(begin));
  function follow(on) {
    following = on;
    on ? attempt(() => show()) : showState();
  }
  $("#log-follow").addEventListener("click", () => follow(!following));
  $("#log-new").addEventListener("click", () => follow(true));
  $("#log-wrap").addEventListener("click", ({ currentTarget }) => {
    const wrap = pane.classList.toggle("nowrap");
    currentTarget.setAttribute("aria-pressed", String(!wrap));
    showState();
  });
  run.addEventListener("change", () => {
    if (!worker) return location.assign(`${location.pathname}?run=${run.value}`);
    newest = run.selectedIndex === 0;
    chosen = run.value;
    following = true;
    attempt(() => show());
  });
  $("#log-cause")?.addEventListener("click", () => attempt(goToCause));
  logText.onSearch(() => attempt(() => show()));

  if (!worker && !run.options.length) empty.textContent = message("log.no_runs");
  else attempt(begin);
})();
