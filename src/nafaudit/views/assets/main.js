// Links within the page: #t12.30 is step 30 of the 12th execution shown, #a2 the prompts of an arm.
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
  const execution = /^#t(\d+)(?:\.(\d+))?$/.exec(location.hash);
  const arm = /^#a(\d+)$/.exec(location.hash);
  if (execution && D.view[Number(execution[1])]) {
    show(Number(execution[1]), execution[2] === undefined ? undefined : Number(execution[2]));
    view.pinned = execution[2] !== undefined;
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
