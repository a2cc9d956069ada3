// Builds the pages of EverShop that customers see. Its own command builds the administration as well, in twice the time.
import { existsSync, mkdirSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const dist = pathToFileURL(path.resolve("node_modules/@evershop/evershop/dist") + "/");
const load = (file) => import(new URL(file, dist).href);

for (const folder of ["media", "public", "themes", "extensions", ".evershop/build"])
  if (!existsSync(folder)) mkdirSync(folder, { recursive: true });

await load("bin/build/initEnvBuild.js");
const { getCoreModules } = await load("bin/lib/loadModules.js");
const { loadModuleRoutes } = await load("lib/router/loadModuleRoutes.js");
const { getRoutes } = await load("lib/router/Router.js");
const { isBuildRequired } = await load("lib/webpack/isBuildRequired.js");
const { buildEntry } = await load("bin/lib/buildEntry.js");
const { compile } = await load("bin/build/complie.js");

getCoreModules().forEach((module) => loadModuleRoutes(module.path));
const routes = getRoutes().filter((route) => !route.isAdmin);
await buildEntry(routes.filter((route) => isBuildRequired(route)));
await compile(routes);
process.exit(0);
