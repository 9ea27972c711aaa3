(() => {
  "use strict";
  const templates = JSON.parse(document.getElementById("templates").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const figures = [...document.querySelectorAll("script[data-figure]")].map((script) => ({
    div: document.getElementById(script.dataset.figure),
    spec: JSON.parse(script.textContent),
  }));
  const config = (div) => ({
    responsive: true,
    displaylogo: false,
    displayModeBar: touch || innerWidth < 600 ? false : "hover",
    showSendToCloud: false,
    scrollZoom: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    toImageButtonOptions: { format: "svg", filename: div.dataset.name },
  });
  // The height is that of the element, which figures of one row share. A drag on a touch
  // screen has to scroll the page.
  const layout = (spec, look) => ({
    ...recoloured(spec.layout, look), height: undefined, template: templates[look], autosize: true,
    ...(touch && { dragmode: false }),
  });
  // Ink and paper of a light page become those of a dark one; what is data stays.
  const data = new Set(["customdata", "text", "hovertemplate", "meta", "template"]);
  const recoloured = (value, look) => {
    if (look === "light") return value;
    if (typeof value === "string") return templates.inks[value] ?? value;
    if (Array.isArray(value)) return value.map((item) => recoloured(item, look));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) =>
      [key, data.has(key) ? item : recoloured(item, look)]));
  };
  const draw = (look) => figures.map(({ div, spec }) =>
    Plotly.react(div, recoloured(spec.data, look), layout(spec, look), config(div)));
  const current = () => (dark.matches ? "dark" : "light");
  draw(current());
  dark.addEventListener("change", () => draw(current()));
  addEventListener("beforeprint", () => draw("light"));
  addEventListener("afterprint", () => draw(current()));
})();
