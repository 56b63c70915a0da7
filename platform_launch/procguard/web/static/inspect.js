// What all ranks of a running group do now, asked when somebody wants to know.
"use strict";
(() => {
  const MOST = 8;
  const dialog = $("#inspect");
  const status = $("#inspect-status");
  const again = $("#inspect-again");
  const address = `/api/v1/groups/${encodeURIComponent(dialog.dataset.group)}/inspect`;
  const headers = JSON.parse(document.body.getAttribute("hx-headers"));

  function show(id, lines) {
    $(`#inspect-${id}`).textContent = lines.join("\n");
    $(`#inspect-${id}`).hidden = lines.length === 0;
  }

  function few(workers) {
    const more = workers.length - MOST;
    return workers.slice(0, MOST).join(", ") + (more > 0 ? ` ${say("and_more", { n: more })}` : "");
  }

  function told(found) {
    const parts = [say("inspect.seen", { ranks: found.ranks, nodes: found.nodes })];
    if (found.moved_s_ago !== null) parts.push(say("inspect.moved", { seconds: Math.round(found.moved_s_ago) }));
    if (found.silent.length) parts.push(say("inspect.silent", { workers: few(found.silent) }));
    return parts.join(" ");
  }

  async function ask() {
    again.disabled = true;
    status.textContent = say("inspect.asking");
    try {
      const answer = await fetch(address, { method: "POST", headers });
      const found = await answer.json();
      status.textContent = answer.ok ? told(found) : sentence(found.error, found.hint);
      show("finding", found.finding ?? []);
      show("lines", found.lines ?? []);
      show("stacks", found.stacks ?? []);
      $("#inspect-more").hidden = !found.stacks?.length;
    } catch {
      status.textContent = say("failed");
    }
    again.disabled = false;
  }

  // The button comes and goes with the group's state.
  document.addEventListener("click", ({ target }) => {
    if (!target.closest("#inspect-open")) return;
    dialog.showModal();
    ask();
  });
  again.addEventListener("click", ask);
})();
