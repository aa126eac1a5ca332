// Renders the templates that are named on the command line as Helm does, with the values on standard input, in JSON.
package main

import (
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"text/template"

	"github.com/Masterminds/sprig"
)

func main() {
	var values map[string]interface{}
	if err := json.NewDecoder(os.Stdin).Decode(&values); err != nil {
		log.Fatal(err)
	}
	functions := sprig.TxtFuncMap()
	// JSON is YAML.
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := json.Marshal(value)
		return string(text), err
	}
	for _, path := range os.Args[1:] {
		parsed := template.New(filepath.Base(path)).Funcs(functions).Option("missingkey=error")
		parsed = template.Must(parsed.ParseFiles(path))
		release := map[string]interface{}{"Namespace": "monitoring"}
		data := map[string]interface{}{"Values": values, "Release": release}
		os.Stdout.WriteString("---\n")
		if err := parsed.Execute(os.Stdout, data); err != nil {
			log.Fatal(err)
		}
	}
}
