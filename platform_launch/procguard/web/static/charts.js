// Charts of the server's measurements: one per unit, refreshed while they are visible.
"use strict";
(() => {
  const AGAIN_MS = 20000;
  // The series that share a chart, and the top of its scale if it is fixed.
  const CHARTS = [
    { title: "gpu", series: ["gpu", "gpu_lowest"], most: 100, unit: "%" },
    { title: "gpu_memory", series: ["gpu_memory"], unit: "GiB" },
    { title: "steps", series: ["steps"], unit: "/s" },
    { title: "cpu", series: ["cpu"], most: 100, unit: "%" },
    { title: "memory", series: ["memory"], unit: "GiB" },
  ];

  // The computed colour: an element resolves light-dark().
  function paint(variable) {
    const probe = element("span");
    probe.style.color = `var(${variable})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  const STROKES = ["--accent", "--warn", "--ok", "--bad", "--muted"];
  const shown = (value, unit) => (value === null || value === undefined ? "–"
    : `${value.toLocaleString(document.documentElement.lang, { maximumFractionDigits: value < 10 ? 2 : 0 })} ${unit}`);

  // 100,000 would not fit next to the axis.
  const short = new Intl.NumberFormat(document.documentElement.lang, { notation: "compact" });
  const BRIEF_S = 60;
  // A single measurement has no span: uPlot would show three years.
  const ofAxis = ({ data: [times] }, from, to) => (times.length === 1 ? [from - BRIEF_S, from] : [Math.min(from, to - BRIEF_S), to]);

  // A value between two gaps has no line, and would be invisible.
  function alone(values) {
    const known = (at) => (values[at] ?? null) !== null;
    const found = values.flatMap((_, at) => (known(at) && !known(at - 1) && !known(at + 1) ? [at] : []));
    return found.length ? found : null;
  }

  // Without a cursor, the legend shows the newest values.
  function latest(plot) {
    const idx = plot.data[0].length - 1;
    if (plot.legend.idx !== idx) plot.setLegend({ idx }, false);
  }

  function draw(place, title, unit, most, times, lines) {
    const figure = element("figure", undefined, "chart");
    const now = (values) => shown(values.slice(-2).findLast((one) => one !== null), unit); // a series that ended has none
    const last = lines.map(([name, values]) => `${name} ${now(values)}`);
    const caption = element("figcaption");
    caption.append(element("b", title), element("span", lines[0][0] === title ? now(lines[0][1]) : "", "muted"));
    const canvas = element("div");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${title}: ${last.slice(0, 8).join(", ")}`);
    figure.append(caption, canvas);
    place.append(figure);
    const axis = { stroke: paint("--muted"), grid: { stroke: paint("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const many = lines.length > 4;
    const clock = (at, span) => new Date(at * 1000).toLocaleString(document.documentElement.lang, span > 172800
      ? { month: "numeric", day: "numeric" } : { hour: "2-digit", minute: "2-digit", second: span > 600 ? undefined : "2-digit", hourCycle: "h23" });
    return new uPlot({
      width: Math.max(240, canvas.clientWidth),
      height: 170,
      legend: { show: true, live: true },
      hooks: { setLegend: [(plot) => plot.cursor.idx === null && latest(plot)], ready: [latest] },
      cursor: { focus: { prox: 24 }, drag: { x: true, y: false } },
      focus: { alpha: 0.25 },
      scales: { x: { range: ofAxis }, y: { range: (_plot, low, high) => [0, most ?? Math.max(high || 1, 0.001) * 1.1] } },
      axes: [{ ...axis, space: 90, values: (_plot, at) => at.map((one) => clock(one, at.at(-1) - at[0])) }, { ...axis, size: 46, values: (_plot, at) => at.map((one) => short.format(one)) }],
      series: [
        { label: message("chart.time"), value: (_plot, at) => (at === null ? "–" : clock(at, 0)) },
        ...lines.map(([name], index) => ({
          label: name,
          stroke: many ? `hsl(${(index * 47) % 360} 60% 50%)` : paint(STROKES[index % STROKES.length]),
          width: many ? 1 : 1.5,
          value: (_plot, value) => shown(value, unit),
          points: { show: false, filter: () => alone(lines[index][1]) },
        })),
      ],
    }, [times, ...lines.map(([, values]) => values)], canvas);
  }

  async function fetched(path) {
    const answer = await fetch(path);
    if (answer.status === 401) location.reload();
    if (!answer.ok) throw new Error(answer.status);
    return answer.json();
  }

  function start(box) {
    let span = "hour";
    let plots = [];
    let request = 0; // the newest: answers to earlier ones are ignored
    const place = $(".chart-list", box);
    const status = $(".chart-status", box);

    async function show() {
      const mine = (request += 1);
      let chart, ranks = null;
      try {
        chart = await fetched(`/api/v1/charts/${box.dataset.chart}?span=${span}`);
        if (box.dataset.ranks && span === "hour") ranks = await fetched(`/api/v1/charts/${box.dataset.ranks}/ranks`);
      } catch {
        if (mine === request) status.textContent = message("charts.trouble");
        return;
      }
      if (mine !== request) return;
      plots.forEach((plot) => plot.destroy());
      plots = [];
      place.replaceChildren();
      for (const { title, series, most, unit } of CHARTS) {
        const lines = series.filter((one) => chart.series[one]?.some((value) => value !== null))
          .map((one) => [message(`chart.${one}`), chart.series[one]]);
        if (lines.length) plots.push(draw(place, message(`chart.${title}`), unit, most, chart.times, lines));
      }
      const byRank = ranks ? Object.entries(ranks.series) : [];
      if (byRank.length > 1) plots.push(draw(place, message("chart.ranks"), "%", 100, ranks.times, byRank));
      status.textContent = plots.length ? "" : message(`charts.none.${span}`);
    }

    for (const button of box.querySelectorAll("[data-span]")) {
      button.addEventListener("click", () => {
        span = button.dataset.span;
        box.querySelectorAll("[data-span]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
        show();
      });
    }
    let width = 0;
    new ResizeObserver(() => {
      if (Math.abs(box.clientWidth - width) < 4) return;
      width = box.clientWidth;
      show();
    }).observe(box);
    setInterval(() => !document.hidden && box.checkVisibility() && !box.matches(":hover") && show(), AGAIN_MS);
    $("#theme")?.addEventListener("click", () => setTimeout(show));
  }

  document.querySelectorAll("[data-chart]").forEach(start);
})();
