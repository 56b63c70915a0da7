// The merged logs of a run's ranks: the end as it grows, earlier parts on request, a search from the beginning.
"use strict";
(() => {
  const box = $("#group-log");
  const pane = $("#log-lines");
  const status = $("#log-status");
  const empty = $("#log-empty");
  const address = `/api/v1/groups/${encodeURIComponent(box.dataset.group)}/log`;
  const PAGE = 500;
  const MOST_LINES = 6000;
  const older = element("button", message("log.older"));
  const further = element("button", message("log.further"));
  const text = element("div");
  for (const button of [older, further]) [button.type, button.hidden] = ["button", true];
  pane.append(older, text, further);

  let before = null; // where earlier lines end
  let after = null; // where later lines begin
  let ended = false;
  let generation = 0;
  let following = true;
  let turn = 0;
  let request = 0; // the newest: answers to earlier ones are ignored
  let sought = null;
  let more = false; // whether what follows can be read at once
  let searching = false;
  let halted = false;
  let share = 0; // of the logs that has been searched

  const time = new Intl.DateTimeFormat(document.documentElement.lang, { timeStyle: "medium", hourCycle: "h23" });

  function ask(query) {
    const ranks = $("#log-ranks").value.trim();
    return logText.ask(address, { run: box.dataset.run, limit: PAGE, ...(ranks ? { ranks } : {}), ...sought?.query, ...query });
  }

  function rows(lines, target) {
    return lines.flatMap((line) => logText.rewritten(line.text).map((part, index) => {
      const row = element("div", undefined, line.match ? "line" : "line beside");
      if (line.place === target) row.classList.add("target");
      const whose = element("a", index ? "" : `${line.rank} · ${line.worker}`);
      whose.href = `/workers/${encodeURIComponent(line.worker)}/log?generation=${generation}#B${line.offset}`;
      if (index || !sought) whose.tabIndex = -1; // thousands of tab stops help nobody; those of matches do
      const content = element("span");
      content.append(logText.shown(part, line.match ? sought?.mark : null));
      row.append(element("i", index ? "" : time.format(new Date(line.at))), whose, content);
      return row;
    }));
  }

  function update(page) {
    [ended, generation, after, more] = [page.ended, page.generation, page.after, page.more];
    share = page.size ? page.read / page.size : 1;
  }

  function showState() {
    older.hidden = before === null || sought !== null;
    empty.hidden = text.childElementCount > 0 || searching || more;
    empty.textContent = sought ? logText.nothing() : message("log.empty");
    const n = text.querySelectorAll(".line:not(.beside)").length;
    if (sought && !searching) status.textContent = logText.outcome(n, more, halted, share);
    else if (!sought) status.textContent = following || ended ? "" : message("log.paused");
    status.setAttribute("aria-live", sought ? "polite" : "off");
    further.hidden = !more || searching;
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
      update(page);
      text.append(...rows(page.lines));
      showState();
    }
    searching = false;
    logText.progress(null);
    showState();
    if (!more && !ended) plan(1500);
  }

  async function show(query = {}) {
    const mine = (request += 1);
    clearTimeout(turn);
    sought = logText.sought();
    logText.progress(null);
    [searching, more, share] = [false, false, 0];
    if (sought && !("line" in query)) {
      text.replaceChildren();
      [before, after] = [null, ""];
      return search();
    }
    const page = await ask(query);
    if (mine !== request) return;
    text.replaceChildren(...rows(page.lines, page.target));
    update(page);
    before = page.before;
    showState();
    text.querySelector(".target")?.scrollIntoView({ block: "center" });
    plan(1500);
  }

  // Fetch new lines.
  async function grow() {
    if (document.hidden || !(following || sought) || after === null || more) return plan(1500);
    const mine = request;
    const page = await ask({ after });
    if (mine !== request) return;
    text.append(...rows(page.lines));
    while (!sought && text.childElementCount > MOST_LINES) text.firstChild.remove();
    const behind = page.more && !sought;
    update(page);
    if (behind) more = false;
    if (page.lines.length) showState();
    if (!ended || behind) plan(behind ? 0 : 1500);
  }

  function plan(wait) {
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

  logText.onClick(older, () => attempt(async () => {
    following = false;
    const mine = request;
    const page = await ask({ before });
    if (mine !== request) return;
    const height = pane.scrollHeight;
    text.prepend(...rows(page.lines));
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
  $("#log-follow").addEventListener("click", () => {
    following = !following;
    following ? attempt(() => show()) : showState();
  });
  $("#log-wrap").addEventListener("click", ({ currentTarget }) => {
    const wrap = pane.classList.toggle("nowrap");
    currentTarget.setAttribute("aria-pressed", String(!wrap));
  });
  $("#log-run").addEventListener("change", ({ target }) => {
    location.assign(`${location.pathname}?run=${target.value}`);
  });
  function cause() {
    following = false;
    $("#log-text").value = "";
    $("#log-errors").checked = false;
    location.hash = "cause";
    return show({ rank: box.dataset.causeRank, line: box.dataset.causeLine });
  }
  $("#log-cause")?.addEventListener("click", () => attempt(cause));
  logText.onSearch(() => attempt(() => show()));

  if (!$("#log-run").options.length) empty.textContent = message("log.no_runs");
  else attempt(location.hash === "#cause" && box.dataset.causeRank ? cause : () => show());
})();
