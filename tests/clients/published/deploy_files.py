"""Check files of `deploy`, and print the results as JSON.

`chart PATH`: lint the chart with the first values of a JSON list on standard input, and render it with each: the list
of objects, valid for Kubernetes, or the error. `queries`: the errors of a JSON list of PromQL expressions.
"""

import json
import sys
from typing import Any

import helm_python as helm
import kubernetes_validate
import promql_parser
import yaml

KUBERNETES = "1.34"


def render(chart: helm.Chart, values: dict[str, Any]) -> list[Any] | str:
    try:
        chart.validate_schema(values)
        files = chart.render(values, name="shop", namespace="money").values()
    except helm.HelmError as error:
        return str(error)
    objects = [each for text in files for each in yaml.safe_load_all(text) if each]
    for each in objects:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    return objects


def check_chart(path: str, values: list[dict[str, Any]]) -> dict[str, Any]:
    with helm.Chart.load(path) as chart:
        return {
            "lint": [each for each in helm.lint(path, values[0], strict=True)["messages"] if each["severity"] > 1],
            "metadata": chart.metadata,
            "rendered": [render(chart, each) for each in values],
        }


def check_queries(queries: list[str]) -> dict[str, str]:
    errors = {}
    for query in queries:
        try:
            promql_parser.parse(query)
        except ValueError as error:
            errors[query] = str(error)
    return errors


command, *arguments = sys.argv[1:]
given = json.load(sys.stdin)
json.dump(check_chart(*arguments, given) if command == "chart" else check_queries(given), sys.stdout)
