package metrics

import (
	"reflect"
	"strings"
)

// Prefix is what all names in the text begin with.
const Prefix = "moewire_store_"

// Row says of one number what it is.
type Row struct {
	Key  string // in the statistics: the path of JSON keys, with dots
	Name string // in the text; "" if it is not there
	Help string
	// Label is a label of the text as "name=value", or the name of the label that takes the keys of a map.
	Label string
}

// Kind is the type that the text gives a number.
func (r *Row) Kind() string {
	switch {
	case strings.HasSuffix(r.Name, "_total"):
		return "counter"
	case strings.HasSuffix(r.Name, "_duration_seconds"):
		return "histogram"
	}
	return "gauge"
}

// field is a row with what it says now.
type field struct {
	Row
	value reflect.Value
}

// Rows lists the numbers of statistics: a struct, or a pointer to one. Of a slice those of its elements are listed.
func Rows(stats any) []Row {
	var rows []Row
	for _, f := range fields(reflect.ValueOf(stats), "") {
		if f.value.Kind() != reflect.Slice {
			rows = append(rows, f.Row)
			continue
		}
		for _, e := range fields(reflect.New(f.value.Type().Elem()), f.Key+"[].") {
			rows = append(rows, e.Row)
		}
	}
	return rows
}

// fields flattens structs.
func fields(v reflect.Value, path string) (all []field) {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		at := v.Type().Field(i)
		key, _, _ := strings.Cut(at.Tag.Get("json"), ",")
		if !at.IsExported() || key == "" || key == "-" {
			continue
		}
		if inner := fieldsOf(v.Field(i), path+key+"."); inner != nil {
			all = append(all, inner...)
			continue
		}
		if isNumber(at.Type) {
			all = append(all, field{rowOf(at.Tag, path+key), v.Field(i)})
		}
	}
	return all
}

// fieldsOf are those of a struct in a struct; nil if it is a number itself.
func fieldsOf(v reflect.Value, path string) []field {
	if v.Type() == reflect.TypeFor[Counter]() || v.Type() == reflect.TypeFor[Latency]() {
		return nil
	}
	return fields(v, path)
}

func isNumber(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Interface, reflect.Pointer:
		return false
	}
	return true
}

func rowOf(tag reflect.StructTag, key string) Row {
	name, label, _ := strings.Cut(tag.Get("metric"), ",")
	if name == "-" {
		name = ""
	}
	return Row{Key: key, Name: name, Help: tag.Get("help"), Label: label}
}
