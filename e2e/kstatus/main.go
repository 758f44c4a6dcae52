// Asks kstatus' own library what it makes of objects: JSON objects or Lists on stdin, one line each on stdout, with the
// object's name, what it is (Current, InProgress, Failed, Terminating, Unknown) and why, with a tab between two.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kstatus:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	for decoder := json.NewDecoder(in); ; {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		objects, err := read(raw)
		if err != nil {
			return err
		}
		for _, object := range objects {
			found, err := status.Compute(&object)
			if err != nil {
				return fmt.Errorf("%s: %w", object.GetName(), err)
			}
			fmt.Fprintf(out, "%s\t%s\t%s\n", object.GetName(), found.Status, found.Message)
		}
	}
}

// read gives the objects of a List, or the one object.
func read(raw []byte) ([]unstructured.Unstructured, error) {
	var object unstructured.Unstructured
	if err := object.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	if !object.IsList() {
		return []unstructured.Unstructured{object}, nil
	}
	list, err := object.ToList()
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
