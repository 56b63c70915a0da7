// What all ranks of a running group are doing, fetched on request.
"use strict";
(() => {
  const MOST = 8;
  const dialog = $("#inspect");
  const status = $("#inspect-status");
  const again = $("#inspect-again");
  const save = $("#inspect-save");
  const address = `/api/v1/groups/${encodeURIComponent(dialog.dataset.group)}/inspect?language=${dialog.dataset.language}`;
  const headers = JSON.parse(document.body.getAttribute("hx-headers"));

  function show(id, text) {
    $(`#inspect-${id}`).textContent = text;
    $(`#inspect-${id}`).hidden = !text;
  }

  function few(workers) {
    const more = workers.length - MOST;
    return workers.slice(0, MOST).join(", ") + (more > 0 ? ` ${message("and_more", { n: more })}` : "");
  }

  function summary(found) {
    const parts = [message("inspect.seen", { ranks: found.ranks, nodes: found.nodes })];
    if (found.moved_s_ago !== null) parts.push(message("inspect.moved", { seconds: Math.round(found.moved_s_ago) }));
    if (found.silent.length) parts.push(message("inspect.silent", { workers: few(found.silent) }));
    return parts.join(" ");
  }

  function shown({ finding = [], lines = [], stacks = [], more_places: places = 0, more_ranks: ranks = 0 }) {
    show("finding", finding.join("\n"));
    show("lines", lines.join("\n"));
    show("more-places", places ? message("inspect.more_places", { n: places }) : "");
    show("stacks", stacks.join("\n"));
    show("more-ranks", ranks ? message("inspect.more_ranks", { n: ranks }) : "");
    $("#inspect-more").hidden = save.hidden = !stacks.length;
  }

  // The page shows what a person can read; the file has all places and stacks, fetched again.
  async function ask(query, take) {
    again.disabled = save.disabled = true;
    status.textContent = message("inspect.asking");
    try {
      const answer = await fetch(address + query, { method: "POST", headers });
      const found = await answer.json();
      status.textContent = answer.ok ? summary(found) : refused(found);
      if (answer.ok || !query) take(found);
    } catch {
      status.textContent = message("failed");
    }
    again.disabled = save.disabled = false;
  }

  function file(found) {
    const link = element("a");
    const text = [...found.finding, ...found.lines, "", ...found.stacks, ""].join("\n");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    link.download = `${found.group}-${found.run}-stacks.txt`;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  // The button appears and disappears with the group's state.
  document.addEventListener("click", ({ target }) => {
    if (!target.closest("#inspect-open")) return;
    dialog.showModal();
    ask("", shown);
  });
  again.addEventListener("click", () => ask("", shown));
  save.addEventListener("click", () => ask("&whole=true", file));
})();
