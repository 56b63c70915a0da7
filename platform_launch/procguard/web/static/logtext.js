// Shows lines of a log: the program's colours, matches, and otherwise invisible characters.
// A program's output is only ever shown as textContent: nothing in it is executed or hidden.
"use strict";
const logText = (() => {
  const STYLE = /\x1b\[([0-9;:]*)m/g;
  const ERASE = /\x1b\[[0-9;]*K/g; // "clear to the end of the line"
  const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/gu;
  const NAMES = ("NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI "
    + "DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US").split(" ");
  const ATTRIBUTES = { 1: "strong", 2: "faint", 3: "slanted", 4: "lined", 7: "strong" };

  function symbol(character) {
    const code = character.codePointAt(0);
    if (code < 0x20) return NAMES[code];
    return code === 0x7f ? "DEL" : `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  }

  // One of the eight colours; black and white become the text colour, because the page has its own background.
  function colour(number) {
    const base = number % 8;
    return number < 16 && base > 0 && base < 7 ? `ink${base}` : "";
  }

  // The parts of a line, each with its style's classes.
  function parts(raw) {
    const text = raw.replace(ERASE, "");
    const found = [];
    let place = 0;
    let ink = "";
    let marks = new Set();
    const take = (end) => end > place && found.push([text.slice(place, end), [...marks, ink].filter(Boolean).join(" ")]);
    for (const escape of text.matchAll(STYLE)) {
      take(escape.index);
      place = escape.index + escape[0].length;
      const codes = escape[1].split(/[;:]/).map(Number);
      for (let i = 0; i < codes.length; i += 1) {
        const code = codes[i];
        if (code === 0) [ink, marks] = ["", new Set()];
        else if (ATTRIBUTES[code]) marks.add(ATTRIBUTES[code]);
        else if (code === 22) ["strong", "faint"].forEach((one) => marks.delete(one));
        else if (code >= 30 && code <= 37) ink = colour(code - 30);
        else if (code >= 90 && code <= 97) ink = colour(code - 90);
        else if (code === 39) ink = "";
        else if (code === 38 || code === 48) {
          if (code === 38 && codes[i + 1] === 5) ink = colour(codes[i + 2] ?? 0);
          i += codes[i + 1] === 5 ? 2 : 4;
        }
      }
    }
    take(text.length);
    return found;
  }

  // A pattern for highlighting matches; the server decides what matches.
  function pattern(sought, expression) {
    if (!sought) return null;
    try {
      return new RegExp(expression ? sought : sought.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "gi");
    } catch {
      return null; // not valid in the browser's syntax
    }
  }

  function plain(into, text) {
    let place = 0;
    for (const found of text.matchAll(UNSEEN)) {
      into.append(text.slice(place, found.index), element("span", symbol(found[0]), "symbol"));
      place = found.index + found[0].length;
    }
    into.append(text.slice(place));
  }

  function shown(raw, wanted) {
    const made = document.createDocumentFragment();
    const styled = parts(raw);
    const whole = styled.map(([text]) => text).join("");
    const hits = wanted ? [...whole.matchAll(wanted)].filter((hit) => hit[0]).map((hit) => [hit.index, hit.index + hit[0].length]) : [];
    let at = 0;
    for (const [text, style] of styled) {
      const into = style ? element("span", undefined, style) : made;
      let place = 0;
      for (const [begin, end] of hits) {
        const [from, to] = [Math.max(begin - at, place), Math.min(end - at, text.length)];
        if (to <= from) continue;
        plain(into, text.slice(place, from));
        const mark = element("mark");
        plain(mark, text.slice(from, to));
        into.append(mark);
        place = to;
      }
      plain(into, text.slice(place));
      if (into !== made) made.append(into);
      at += text.length;
    }
    return made;
  }

  // The parts of a line that was rewritten with carriage returns, such as a progress bar.
  function rewritten(raw) {
    const found = raw.split("\r");
    if (found.length > 1 && found.at(-1).replace(STYLE, "").replace(ERASE, "") === "") found.pop();
    return found;
  }

  function inBytes(bytes) {
    const units = ["B", "KiB", "MiB", "GiB"];
    let unit = 0;
    for (; bytes >= 1024 && unit < 3; unit += 1) bytes /= 1024;
    return `${bytes.toLocaleString(document.documentElement.lang, { maximumFractionDigits: unit ? 1 : 0 })} ${units[unit]}`;
  }

  // The form's search; null if it is empty.
  function sought() {
    const search = $("#log-text").value.trim();
    const errors = $("#log-errors").checked;
    if (!search && !errors) return null;
    const query = { context: $("#log-context").value };
    if (search) query.search = search;
    if (search && $("#log-expression").checked) query.expression = "true";
    if (errors) query.errors = "true";
    return { query, mark: pattern(search, $("#log-expression").checked) };
  }

  // Calls back when the search changes.
  function onSearch(act) {
    let typing = 0;
    const soon = () => {
      clearTimeout(typing);
      typing = setTimeout(act, 250);
    };
    $("#log-search").addEventListener("input", (event) => event.target.id !== "log-run" && soon());
    $("#log-search").addEventListener("submit", (event) => {
      event.preventDefault();
      act();
    });
  }

  // A button that fetches more; ignores clicks while it is fetching.
  function onClick(button, fetchMore) {
    let underWay = false;
    button.addEventListener("click", async () => {
      if (underWay) return;
      underWay = true;
      await fetchMore();
      underWay = false;
    });
  }

  // Calls the API. A refusal becomes an Error with its message.
  async function ask(address, query) {
    const answer = await fetch(`${address}?${new URLSearchParams(query)}`);
    if (answer.status === 401) location.reload();
    if (answer.status === 422) {
      const refusal = await answer.json().catch(() => ({}));
      throw new Error(refusal.error ? refused(refusal) : "", { cause: "refused" });
    }
    if (!answer.ok) throw new Error(answer.status);
    return answer.json();
  }

  // Shows a search's progress, with a button to stop it; null: no search. Returns whether it was stopped.
  let halted = false;
  const stop = element("button", message("log.stop"));
  [stop.type, stop.hidden] = ["button", true];
  stop.addEventListener("click", () => { halted = true; });
  $("#log-status").after(stop);
  function progress(share) {
    stop.hidden = share === null;
    if (share === null) halted = false;
    else $("#log-status").textContent = message("log.searching", { percent: Math.floor(100 * share) });
    return halted;
  }

  // The result of a finished search.
  function outcome(n, more, stopped, share) {
    if (stopped) return message("log.stopped", { percent: Math.floor(100 * share) });
    return more ? message("log.more", { n }) : n === 1 ? message("log.match") : message("log.matches", { n });
  }

  // The message if a whole log has no match.
  function nothing() {
    const search = $("#log-text").value.trim();
    return search ? message("log.no_match", { text: search }) : message("log.no_error");
  }

  return { shown, rewritten, inBytes, sought, onSearch, onClick, ask, progress, outcome, nothing };
})();
