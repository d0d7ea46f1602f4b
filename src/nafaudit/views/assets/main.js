// Links within the page: #t12.30 is step 30 of the 12th trajectory shown, #a2 the prompts of an arm.
setUp();
spendPanels();
usePanels();
regimeBars();
tailLines();
overlapPoints();
boundBars();
if (byId("t-classes")) classTable();
const prompts = promptTable();

function follow() {
  const opened = /^#t(\d+)(?:\.(\d+))?$/.exec(location.hash);
  const arm = /^#a(\d+)$/.exec(location.hash);
  if (opened && D.view[Number(opened[1])]) {
    show(Number(opened[1]), opened[2] === undefined ? undefined : Number(opened[2]));
    view.pinned = opened[2] !== undefined;
    ledger();
    byId("viewer").scrollIntoView();
  } else if (arm && D.arms[Number(arm[1])]) {
    prompts.only(Number(arm[1]));
    byId("prompts").scrollIntoView();
  }
}
if (D.view.length) show(D.first);
window.addEventListener("hashchange", follow);
follow();
