// Draws the training page's series with uPlot; a dashed line stands where a policy version went live.
"use strict";
(async () => {
  const place = document.querySelector("#plots");
  if (!place) return;
  const answer = await fetch(place.dataset.src);
  if (!answer.ok) return;
  const { plots, markers } = await answer.json();
  const colour = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    place.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  let drawn = [];
  const two = (value) => String(value).padStart(2, "0");
  const hour = (at) => { const t = new Date(at * 1000); return `${two(t.getHours())}:${two(t.getMinutes())}`; };
  const day = (at) => { const t = new Date(at * 1000); return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}`; };
  // the day is said where it begins, and with the first mark
  const clock = (_, marks) => marks.map((at, i) => i === 0 || day(at) !== day(marks[i - 1]) ? `${hour(at)}\n${day(at)}` : hour(at));

  function versions(chart) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.strokeStyle = colour("faint");
    ctx.fillStyle = colour("soft");
    ctx.font = `${11 * devicePixelRatio}px Inter, sans-serif`;
    ctx.textAlign = "left";
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    let free = -Infinity;
    for (const [when, version] of markers) {
      const x = Math.round(chart.valToPos(when, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      if (x > free) { ctx.fillText(`v${version}`, x + 3 * devicePixelRatio, bbox.top + 10 * devicePixelRatio); free = x + 28 * devicePixelRatio; }
    }
    ctx.restore();
  }

  function draw() {
    for (const chart of drawn) chart.destroy();
    const strokes = [colour("accent"), colour("compaction"), colour("fork")];
    const axis = { stroke: colour("soft"), grid: { stroke: colour("hair"), width: 1 }, ticks: { show: false }, font: "11px Inter, sans-serif" };
    drawn = [...place.querySelectorAll(".plot")].map((box, at) => new uPlot({
      width: Math.max(240, box.clientWidth), height: 200,
      cursor: { points: { size: 6 } },
      scales: { x: { time: true }, y: { range: (_, low, high) => low === null ? [0, 1] : low === high ? [low, low + 1] : uPlot.rangeNum(low, high, 0.1, true) } },
      axes: [{ ...axis, values: clock, space: 70 }, { ...axis, size: 46 }],
      series: [{ label: "at", value: (_, at) => at === null ? "–" : `${day(at)} ${hour(at)}` }, ...plots[at].names.map((label, i) => ({ label, stroke: strokes[i % 3], width: 1.75, dash: i ? [4, 4] : undefined, points: { show: plots[at].columns[0].length < 40, size: 4 }, spanGaps: true }))],
      hooks: { draw: [versions] },
    }, plots[at].columns, box));
    place.dataset.drawn = String(drawn.length);
  }
  draw();
  document.addEventListener("mosaic:theme", draw);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 120); });
})();
