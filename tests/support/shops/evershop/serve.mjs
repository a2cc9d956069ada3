// Runs EverShop on loopback, with three pen holders that are variants of each other and a sold-out bowl.
// Gets the folder of its packages, the database, and a folder; prints one line of JSON when it listens. Started by `tests.support.shops.evershop`.
import { readFileSync } from "node:fs";
import http from "node:http";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [, , packages, database] = process.argv;
const { hostname, port, pathname } = new URL(database);
// The shop's own messages are the log; only the line at the end is what the tests wait for.
const print = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr);
process.chdir(packages);
const dist = pathToFileURL(path.resolve("node_modules/@evershop/evershop/dist") + "/");
const load = (file) => import(new URL(file, dist).href);

const server = http.createServer((request, response) => app(request, response));
await new Promise((listens) => server.listen(0, "127.0.0.1", listens));
const base = `http://127.0.0.1:${server.address().port}`;
Object.assign(process.env, {
  DB_HOST: hostname, DB_PORT: port, DB_USER: "postgres", DB_PASSWORD: "", DB_NAME: pathname.slice(1), DB_SSLMODE: "disable",
  PORT: String(server.address().port),
  NODE_CONFIG: JSON.stringify({
    shop: { currency: "USD", language: "en", timezone: "UTC", homeUrl: base },
    system: { cod: { status: 1 }, stripe: { status: 0 }, paypal: { status: 0 } },
  }),
});

// As its own command starts it, without its processes for cron jobs and for events, which would outlive this one.
await load("bin/start/initEnvStart.js");
const { createApp } = await load("bin/lib/app.js");
const { getCoreModules } = await load("bin/lib/loadModules.js");
const { loadBootstrapScript } = await load("bin/lib/bootstrap/bootstrap.js");
const { migrate } = await load("bin/lib/bootstrap/migrate.js");
const app = createApp();
const modules = getCoreModules();
for (const module of modules) await loadBootstrapScript(module, { command: "start", env: "production", process: "main" });
(await load("lib/util/hookable.js")).lockHooks();
(await load("lib/util/registry.js")).lockRegistry();
await migrate(modules);

const { pool } = await load("lib/postgres/connection.js");
const { seedAttributeGroup, seedAttributes } = await load("bin/seed/seedAttributes.js");
const { createVariantGroups, resolveAttributeOptions } = await load("bin/seed/variantGroupHelpers.js");
const { default: createProduct } = await load("modules/catalog/services/product/createProduct.js");
const { default: buildUrlRewrite } = await load("modules/catalog/subscribers/product_created/buildUrlRewrite.js");
const { default: createCustomer } = await load("modules/customer/services/customer/createCustomer.js");

const query = async (text, values) => (await pool.query(text, values)).rows;
const group = await seedAttributeGroup();
await seedAttributes(group);
const [{ attribute_id: color }] = await query("select attribute_id from attribute where attribute_code = 'color'");
const [{ package_id: box }] = await query("select package_id from package order by is_default desc limit 1");
// The demonstration data of the package, without pictures, which it would download.
const all = JSON.parse(readFileSync(new URL("bin/seed/data/products.json", dist), "utf8"));
const products = all.filter((product) => product.variant_group === "desk-pen-holder" || product.sku === "BOWL-003-WHT");
const variants = await createVariantGroups(products, group, color);
for (const { images, category, collections, variant_group, ...product } of products) {
  const created = await createProduct({
    ...product, group_id: group, package_id: box, variant_group_id: variants.get(variant_group),
    attributes: await resolveAttributeOptions(product.attributes), qty: product.sku === "BOWL-003-WHT" ? 0 : 100,
  }, {});
  await buildUrlRewrite({ ...created, product_id: created.insertId });
}
await createCustomer({ email: "ada@example.com", password: "a-long-password-1", full_name: "Ada Buyer" }, {});
await query(`
  with zone as (insert into shipping_zone (name) values ('United States') returning shipping_zone_id),
    country as (insert into shipping_zone_country (zone_id, country) select shipping_zone_id, 'US' from zone),
    provider as (insert into shipping_zone_provider (zone_id, provider_code) select shipping_zone_id, 'core' from zone),
    method as (insert into core_shipping_method (name, sort_order) values ('Standard delivery', 1), ('Express delivery', 2)
      returning core_shipping_method_id, sort_order)
  insert into core_shipping_method_rate (method_id, zone_id, cost)
    select core_shipping_method_id, shipping_zone_id, case sort_order when 1 then 5 else 12 end from method, zone`);
await query(`insert into coupon (coupon, description, status, discount_amount, discount_type, condition, user_condition, free_shipping)
  values ('SPRING20', 'Spring', true, 20, 'percentage_discount_to_entire_order', '{}', '{}', false)`);
print(JSON.stringify(Object.fromEntries(products.map((product) => [product.sku, `${base}/${product.url_key}`]))) + "\n");
