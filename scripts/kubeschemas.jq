# SPDX-License-Identifier: Apache-2.0

# strict is a schema without texts, and closed: the API server's strict
# validation takes a key that the schema lacks for a mistake, too.
def strict:
  if type == "array" then map(strict)
  elif type != "object" then .
  elif (."$ref" | type) == "string" then {"$ref"}
  elif ."x-kubernetes-int-or-string" == true then {type: ["string", "integer"]}
  else
    ."x-kubernetes-preserve-unknown-fields" as $open
    | with_entries(
        select(.key | (IN("description", "default", "example", "format") or startswith("x-kubernetes-")) | not)
        | if .key == "properties" then .value |= map_values(strict) else .value |= strict end)
    | if has("properties") and (has("additionalProperties") | not) and $open != true then .additionalProperties = false else . end
  end;

# core has the definitions of Kubernetes' own kinds, and those they refer to.
def core($kinds):
  .definitions as $all
  | def collect($name):
      if has($name) then .
      elif $name | endswith(".IntOrString") or endswith(".Quantity") then .[$name] = {type: ["string", "number"]}
      else
        .[$name] = ($all[$name] | strict)
        | reduce (.[$name] | .. | objects | ."$ref"? | strings | ltrimstr("#/definitions/")) as $ref (.; collect($ref))
      end;
    reduce $kinds[] as $kind ({}; collect($kind)) | {definitions: .};

# custom is the version of a custom resource that is stored. The definition says
# nothing of metadata, which every object has.
def custom:
  .spec as $spec
  | $spec.versions[] | select(.storage)
  | {
      file: "\($spec.names.kind | ascii_downcase)-\($spec.group | split(".")[0])-\(.name)",
      schema: (.schema.openAPIV3Schema | strict
        | .properties.metadata = {"$ref": "_definitions.json#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}),
    };
