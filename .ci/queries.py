#!/usr/bin/env python3
"""Prints the queries of a dashboard of Grafana as rules of Prometheus, which `promtool check rules` reads: queries.py FILE"""

import json
import sys

# What Grafana puts in the place of its variables.
VARIABLES = {"$job": ".*", "$subgroup": ".*", "$__rate_interval": "1m"}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    rules = []
    for target in (target for panel in panels for target in panel.get("targets", ())):
        query = target["expr"]
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        if "$" in query:
            raise SystemExit(f"a variable that the dashboard does not have: {query}")
        rules.append({"record": f"query:{len(rules)}", "expr": query})
    # JSON is YAML.
    json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, sys.stdout)


main()
