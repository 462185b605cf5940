// Brings the parts together; the page is ready when `data-ready` is set.

root.dataset.scripts = "";

// a page opened as a file may not be allowed to remember anything
function remembered() {
  try { return localStorage.getItem("gmkcf-theme"); } catch { return null; }
}
function remember(theme) {
  try { localStorage.setItem("gmkcf-theme", theme); } catch { /* then it holds until the page is closed */ }
}

const themes = ["auto", "light", "dark"];
const themeButton = byId("theme");
function useTheme(theme) {
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  themeButton.textContent = `Theme: ${theme}`;
}
let theme = themes.includes(remembered()) ? remembered() : "auto";
useTheme(theme);
themeButton.addEventListener("click", () => {
  theme = themes[(themes.indexOf(theme) + 1) % themes.length];
  useTheme(theme);
  remember(theme);
  redrawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

let map = null;
const table = makeTable((row) => { if (map) map.choose(row); });
map = makeMap((row) => table.find(row));
fusedKernel();
weightLines();
kernelLikeness();
convergence();
largeConfusion();

document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link) return;
  if (link.dataset.row !== undefined) {
    event.preventDefault();
    table.find(Number(link.dataset.row));
  } else if (link.dataset.cluster !== undefined) table.only(Number(link.dataset.cluster));
});

// a link to a folded cluster unfolds it
function unfoldTarget() {
  const target = location.hash.startsWith("#cluster-") && byId(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
}
window.addEventListener("hashchange", unfoldTarget);
unfoldTarget();

const copy = byId("copy");
if (copy) {
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(byId("command").textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(byId("command"));
      copy.textContent = "Selected";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  });
}

window.addEventListener("scroll", hideTip, {passive: true});

let width = innerWidth, resizing = 0;
window.addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  clearTimeout(resizing);
  resizing = setTimeout(redrawAll, 80);
});

// on paper everything is light, and folded clusters show their words
let unfolded = [];
function printing(begins) {
  if (begins === (root.dataset.printing !== undefined)) return;
  if (begins) {
    root.dataset.printing = "";
    unfolded = [...document.querySelectorAll("details.card:not([open])")];
  } else delete root.dataset.printing;
  for (const card of unfolded) card.open = begins;
  redrawAll();
}
window.addEventListener("beforeprint", () => printing(true));
window.addEventListener("afterprint", () => printing(false));
matchMedia("print").addEventListener("change", (event) => printing(event.matches));

root.dataset.ready = "";
