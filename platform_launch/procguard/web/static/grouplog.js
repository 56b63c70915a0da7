// The logs of a run's ranks as one: the end as it grows, earlier parts on request, a search from the beginning.
"use strict";
(() => {
  const box = $("#group-log");
  const pane = $("#log-lines");
  const status = $("#log-status");
  const empty = $("#log-empty");
  const address = `/api/v1/groups/${encodeURIComponent(box.dataset.group)}/log`;
  const PAGE = 500;
  const MOST_LINES = 6000;
  const older = element("button", say("log.older"));
  const further = element("button", say("log.further"));
  const text = element("div");
  for (const button of [older, further]) [button.type, button.hidden] = ["button", true];
  pane.append(older, text, further);

  let before = null; // where earlier lines end
  let after = null; // where later lines begin
  let ended = false;
  let generation = 0;
  let following = true;
  let turn = 0;
  let request = 0; // the newest: answers to earlier ones are left
  let sought = null;

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
      if (index || !sought) whose.tabIndex = -1; // thousands of stops help nobody; those of hits do
      const content = element("span");
      content.append(logText.shown(part, line.match ? sought?.mark : null));
      row.append(element("i", index ? "" : time.format(new Date(line.at))), whose, content);
      return row;
    }));
  }

  function take(page) {
    [ended, generation] = [page.ended, page.generation];
  }

  function sayState() {
    older.hidden = before === null || sought !== null;
    empty.hidden = text.childElementCount > 0;
    empty.textContent = sought ? say("log.no_match", { text: $("#log-text").value.trim() }) : say("log.empty");
    const n = text.querySelectorAll(".line:not(.beside)").length;
    if (sought && !further.hidden) status.textContent = say("log.more", { n });
    else if (sought) status.textContent = n === 1 ? say("log.match") : say("log.matches", { n });
    else status.textContent = following || ended ? "" : say("log.paused");
    status.setAttribute("aria-live", sought ? "polite" : "off");
    $("#log-follow").setAttribute("aria-pressed", String(following));
    if (following && !sought) pane.scrollTop = pane.scrollHeight;
  }

  async function show(query = {}) {
    const mine = (request += 1);
    clearTimeout(turn);
    sought = logText.sought();
    const page = await ask(sought && !("line" in query) ? { after: "" } : query);
    if (mine !== request) return;
    take(page);
    text.replaceChildren(...rows(page.lines, page.target));
    [before, after] = [page.before, page.after];
    further.hidden = !page.more;
    sayState();
    text.querySelector(".target")?.scrollIntoView({ block: "center" });
    plan(page.more && sought && text.childElementCount < PAGE ? 0 : 1500);
  }

  // What came since, and what a search has not looked through yet.
  async function grow() {
    const searching = sought !== null && text.childElementCount < PAGE;
    if (document.hidden || !(following || searching) || after === null) return plan(1500);
    const mine = request;
    const page = await ask({ after });
    if (mine !== request) return;
    take(page);
    after = page.after;
    text.append(...rows(page.lines));
    while (!sought && text.childElementCount > MOST_LINES) text.firstChild.remove();
    further.hidden = !page.more || searching;
    if (page.lines.length || !page.more) sayState();
    if (!ended || page.more) plan(page.more ? 0 : 1500);
  }

  function plan(wait) {
    clearTimeout(turn);
    turn = setTimeout(() => attempt(grow), wait);
  }

  async function attempt(work) {
    try {
      await work();
    } catch (error) {
      status.textContent = error.cause === "refused" ? error.message : say("log.trouble");
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
    sayState();
    pane.scrollTop += pane.scrollHeight - height;
  }));
  logText.onClick(further, () => attempt(async () => {
    const mine = request;
    const page = await ask({ after });
    if (mine !== request) return;
    text.append(...rows(page.lines));
    after = page.after;
    further.hidden = !page.more;
    sayState();
  }));
  pane.addEventListener("scroll", () => {
    if (following && !sought && pane.scrollHeight - pane.scrollTop - pane.clientHeight > 60) {
      following = false;
      sayState();
    }
  });
  $("#log-follow").addEventListener("click", () => {
    following = !following;
    following ? attempt(() => show()) : sayState();
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

  if (!$("#log-run").options.length) empty.textContent = say("log.empty");
  else attempt(location.hash === "#cause" && box.dataset.causeRank ? cause : () => show());
})();
