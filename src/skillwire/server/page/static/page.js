// What needs no script works without this file. It adds copying, and a key that leads to the search.
(() => {
  "use strict";

  const status = document.getElementById("page-status");
  let clearing = 0;

  const tell = (words) => {
    status.textContent = words;
    clearTimeout(clearing);
    clearing = setTimeout(() => { status.textContent = ""; }, 4000);
  };

  const select = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };

  const copy = async (element) => {
    try {
      await navigator.clipboard.writeText(element.textContent);
      tell("Copied");
    } catch {
      // Browsers let pages write to the clipboard only over HTTPS or on the same machine.
      select(element);
      tell("Selected: press Ctrl+C or ⌘C to copy");
    }
  };

  for (const button of document.querySelectorAll("main button[data-copies]")) {
    const element = document.getElementById(button.dataset.copies);
    if (element) {
      button.hidden = false;
      button.addEventListener("click", () => copy(element));
    }
  }

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target instanceof Element && event.target.closest("input, textarea, select");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const search = document.getElementById("page-search");
      event.preventDefault();
      search.focus();
      search.select();
    }
  });
})();
