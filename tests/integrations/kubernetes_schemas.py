"""Runs where kubernetes-validate is: does a manifest fit the schemas of a version of Kubernetes?

python kubernetes_schemas.py MANIFEST VERSION...    prints kinds, or what does not fit
"""

import sys

import kubernetes_validate
import yaml

with open(sys.argv[1]) as file:
    documents = list(yaml.safe_load_all(file))
for version in sys.argv[2:]:
    for document in documents:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            sys.exit(f"{version} {document['kind']}: {error.message}")
        print(version, document["kind"])
