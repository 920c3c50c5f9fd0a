// Draws every chart, in the colours of the current scheme, and again when the scheme changes.
const source = document.getElementById("figures").textContent;

function figures() {
  const style = getComputedStyle(document.documentElement);
  return JSON.parse(source, (_, value) => {
    const variable = typeof value === "string" && value.match(/^var\((--[a-z0-9-]+)\)$/);
    return variable ? style.getPropertyValue(variable[1]).trim() : value;
  });
}

function draw() {
  for (const [id, figure] of Object.entries(figures())) {
    if (innerWidth < 600) figure.layout.height += 18 * figure.data.length; // the legend stands above, a line a curve
    Plotly.react(`chart-${id}`, figure.data, figure.layout, { responsive: true, displayModeBar: false });
  }
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
