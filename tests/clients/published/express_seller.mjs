// Sells /report for a cent with npm's @x402/express or x402-express, as their documentation shows.
// Arguments: the package, the facilitator's URL, the network, the payee.
import { readFileSync } from "node:fs";
import express from "express";

const [name, url, network, payTo] = process.argv.slice(2);
const app = express();
if (name === "x402-express") {
  const { paymentMiddleware } = await import("x402-express");
  app.use(paymentMiddleware(payTo, { "GET /report": { price: "$0.01", network } }, { url }));
} else {
  const { paymentMiddleware, x402ResourceServer } = await import("@x402/express");
  const { ExactEvmScheme } = await import("@x402/evm/exact/server");
  const { HTTPFacilitatorClient } = await import("@x402/core/server");
  const server = new x402ResourceServer(new HTTPFacilitatorClient({ url })).register(network, new ExactEvmScheme());
  const accepts = { scheme: "exact", price: "$0.01", network, payTo };
  app.use(paymentMiddleware({ "GET /report": { accepts, description: "A report" } }, server));
}
app.get("/report", (_request, response) => response.json({ report: "sunny" }));
const listening = app.listen(0, "127.0.0.1", () => {
  const { version } = JSON.parse(readFileSync(new URL(`../node_modules/${name}/package.json`, import.meta.url)));
  console.log(JSON.stringify({ url: `http://127.0.0.1:${listening.address().port}`, version }));
});
