// Sells /report for a cent by MPP with npm's mppx and Express, as its documentation shows.
// Arguments: the facilitator's URL, the payee, and to bind payments to the route: "required" by x402, too, or "mpp" to
// hide the terms of x402 that the package states.
import { readFileSync } from "node:fs";
import express from "express";
import { assets } from "mppx/evm";
import { evm } from "mppx/evm/server";
import { Mppx } from "mppx/express";

const [facilitator, recipient, mode] = process.argv.slice(2);
const hidden = mode === "mpp" ? "payment-required" : undefined;
const x402 = { facilitator, ...(mode === "required" ? { routeBinding: mode } : {}) };
const method = evm.charge({ currency: assets.base.USDC, recipient, x402 });
const price = { amount: "0.01", ...(mode ? { scope: "report" } : {}) };
const mppx = Mppx.create({ methods: [method], realm: "127.0.0.1", secretKey: "secret".repeat(8) });
const app = express();
app.use((_request, response, next) => {
  const set = response.setHeader.bind(response);
  response.setHeader = (name, value) => (name.toLowerCase() === hidden ? response : set(name, value));
  next();
});
app.get("/report", mppx.charge(price), (_request, response) => response.json({ report: "sunny" }));
const listening = app.listen(0, "127.0.0.1", () => {
  const { version } = JSON.parse(readFileSync(new URL("../node_modules/mppx/package.json", import.meta.url)));
  console.log(JSON.stringify({ url: `http://127.0.0.1:${listening.address().port}`, version }));
});
