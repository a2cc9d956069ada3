// Sells /report for a cent by MPP with npm's mppx and Express, as its documentation shows.
// Arguments: the facilitator's URL, the payee, and "mpp" to hide the terms of x402 that the package states too.
import { readFileSync } from "node:fs";
import express from "express";
import { assets } from "mppx/evm";
import { evm } from "mppx/evm/server";
import { Mppx } from "mppx/express";

const [facilitator, recipient, only] = process.argv.slice(2);
const method = evm.charge({ currency: assets.base.USDC, recipient, x402: { facilitator } });
const mppx = Mppx.create({ methods: [method], realm: "127.0.0.1", secretKey: "secret".repeat(8) });
const app = express();
app.use((_request, response, next) => {
  const set = response.setHeader.bind(response);
  response.setHeader = (name, value) => (only && name.toLowerCase() === "payment-required" ? response : set(name, value));
  next();
});
app.get("/report", mppx.charge({ amount: "0.01" }), (_request, response) => response.json({ report: "sunny" }));
const listening = app.listen(0, "127.0.0.1", () => {
  const { version } = JSON.parse(readFileSync(new URL("../node_modules/mppx/package.json", import.meta.url)));
  console.log(JSON.stringify({ url: `http://127.0.0.1:${listening.address().port}`, version }));
});
