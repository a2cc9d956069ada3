// Verifies offers and a receipt with npm's @x402/extensions and jose, as their users write it.
// Arguments: the header of a 402, that of the paid response, and the keys of the service, as JSON.
import { readFileSync } from "node:fs";
import { decodePaymentRequiredHeader } from "@x402/core/http";
import {
  decodeSignedOffers, extractOffersFromPaymentRequired, extractReceiptFromResponse, findAcceptsObjectFromSignedOffer,
  verifyOfferSignatureJWS, verifyReceiptMatchesOffer, verifyReceiptSignatureJWS,
} from "@x402/extensions/offer-receipt";
import { compactVerify, createLocalJWKSet } from "jose";

const [required, settled, published] = process.argv.slice(2);
const keys = JSON.parse(published);
const terms = decodePaymentRequiredHeader(required);
const [offer] = decodeSignedOffers(extractOffersFromPaymentRequired(terms));
const accepted = findAcceptsObjectFromSignedOffer(offer, terms.accepts);
const offered = await verifyOfferSignatureJWS(offer.signedOffer, keys.keys[0]);
const receipt = extractReceiptFromResponse(new Response("", { headers: { "PAYMENT-RESPONSE": settled } }));
const paid = await verifyReceiptSignatureJWS(receipt, keys.keys[0]);
const { protectedHeader } = await compactVerify(receipt.signature, createLocalJWKSet(keys), { algorithms: ["ES256"] });
const [head, , signature] = receipt.signature.split(".");
const dearer = `${head}.${Buffer.from(JSON.stringify({ ...paid, payer: "0x0" })).toString("base64url")}.${signature}`;
const forged = await compactVerify(dearer, createLocalJWKSet(keys)).then(() => "accepted", () => "refused");
const { version } = JSON.parse(readFileSync(new URL("../node_modules/@x402/extensions/package.json", import.meta.url)));
const matches = verifyReceiptMatchesOffer(receipt, offer, [paid.payer]);
console.log(JSON.stringify({ offered, paid, accepted, matches, type: protectedHeader.typ, forged, version }));
