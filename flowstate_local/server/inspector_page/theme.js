// Light, dark, or as the system is. Runs before anything is drawn, so that no page flashes in the wrong one.
(() => {
  const ORDER = ["auto", "light", "dark"];
  const stored = () => {
    try {
      return localStorage.getItem("flowstate-theme") || "auto";
    } catch {
      return "auto"; // storage may be forbidden
    }
  };
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[theme];
    }
  };
  const next = () => {
    const theme = ORDER[(ORDER.indexOf(document.documentElement.dataset.theme) + 1) % ORDER.length];
    try {
      localStorage.setItem("flowstate-theme", theme);
    } catch {
      // then it holds until the page is closed
    }
    apply(theme);
  };
  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    apply(document.documentElement.dataset.theme);
    document.getElementById("theme").addEventListener("click", next);
  });
})();
