// Shows what is pushed to an owner's browser, and opens its page.
"use strict";

const TITLES = {
  "approval.requested": "A payment waits for your decision",
  "approval.failed": "A payment failed after your decision",
  "budget.threshold_reached": "A limit is nearly reached",
  "credits.low": "Credits are low",
  "wallet.frozen": "A wallet was frozen",
  "controls.changed": "The agent loosened its limits",
  "owner.changed": "Who may be the agent's owner has changed",
  "wallet.export_requested": "The keys of a wallet were asked for",
  "wallet.export_cancelled": "The keys of a wallet are no longer asked for",
  "wallet.exported": "The keys of a wallet were taken out",
  "wallet.imported": "A wallet was imported",
  "notices": "Several notices",
};

addEventListener("push", (event) => {
  const notice = event.data.json();
  const { value_usd: value, recipient, url, message } = notice.data;
  const body = [value && `${value} USD`, recipient && `to ${recipient}`, message].filter(Boolean).join(" ");
  event.waitUntil(registration.showNotification(TITLES[notice.type] ?? "Purser", {
    body, tag: notice.id, icon: "/static/purser.svg", data: { url: url ?? "/owner/agents" },
  }));
});

addEventListener("notificationclick", (event) => {
  event.notification.close();
  const target = new URL(event.notification.data.url, location.origin);
  if (target.origin === location.origin) event.waitUntil(clients.openWindow(target.href));
});
