"""Renders the Helm chart and validates its objects by the schemas of Kubernetes: check.py CHART VALUES, with overriding values in JSON.

Prints the objects in JSON, one a line."""

import json
import os
import pathlib
import subprocess
import sys

import kubernetes_validate
import yaml

chart = pathlib.Path(sys.argv[1])
values = yaml.safe_load((chart / "values.yaml").read_text())
values.update(json.loads(sys.argv[2]))
# Debian's packages of Go's libraries are no modules.
command = ["go", "run", str(pathlib.Path(__file__).with_name("render.go")), *sorted(map(str, (chart / "templates").iterdir()))]
environment = dict(os.environ, GO111MODULE="off", GOPATH="/usr/share/gocode", GOFLAGS="")
ran = subprocess.run(command, input=json.dumps(values), env=environment, check=True, stdout=subprocess.PIPE, text=True)
for thing in yaml.safe_load_all(ran.stdout):
    kubernetes_validate.validate(thing, "1.34", strict=True)
    print(json.dumps(thing))
