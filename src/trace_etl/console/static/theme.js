// Apply the chosen theme before the first paint. Without a choice, the system decides.
const chosen = localStorage.getItem("trace-theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
