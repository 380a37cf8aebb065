package metrics

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// MaxNamespaces is how many elements of a slice the text has samples of.
const MaxNamespaces = 64

// maxLabelBytes bounds the value of a label.
const maxLabelBytes = 256

// leastBucket and mostBucket bound the buckets of the text, 4 us to 34 s; the others are in those next to them.
const leastBucket, mostBucket = 12, 35

// family is a name with its samples.
type family struct {
	row  Row
	text []byte
}

// text puts families together, in the order in which they come first.
type text struct {
	order  []*family
	byName map[string]*family
}

// Text writes statistics, a struct or a pointer to one, in the Prometheus text format 0.0.4.
func Text(stats any) []byte {
	t := text{byName: map[string]*family{}}
	for _, f := range fields(reflect.ValueOf(stats), "") {
		t.field(f, "")
	}
	var all []byte
	for _, f := range t.order {
		if len(f.text) == 0 {
			continue
		}
		all = fmt.Appendf(all, "# HELP %s %s\n# TYPE %s %s\n", f.row.Name, helpText(f.row.Help), f.row.Name, f.row.Kind())
		all = append(all, f.text...)
	}
	return all
}

// of finds or begins a family.
func (t *text) of(r Row) *family {
	r.Name = Prefix + r.Name
	f := t.byName[r.Name]
	if f == nil {
		f = &family{row: r}
		t.byName[r.Name] = f
		t.order = append(t.order, f)
	}
	return f
}

// field writes a number, or what a map or a slice has of them. labels stand in front of its own.
func (t *text) field(f field, labels string) {
	if f.value.Kind() == reflect.Slice {
		t.elements(f.value)
		return
	}
	if f.Name == "" {
		return
	}
	to := t.of(f.Row)
	if f.value.Kind() != reflect.Map {
		name, value, _ := strings.Cut(f.Label, "=")
		to.sample(join(labels, label(name, value)), f.value)
		return
	}
	keys := f.value.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		to.sample(join(labels, label(f.Label, k.String())), f.value.MapIndex(k))
	}
}

// elements writes the numbers of a slice's elements, whose texts with a tag "label" are labels.
func (t *text) elements(v reflect.Value) {
	for i := range min(v.Len(), MaxNamespaces) {
		e, labels := v.Index(i), ""
		for at := range e.NumField() {
			if name := e.Type().Field(at).Tag.Get("label"); name != "" {
				labels = join(labels, label(name, e.Field(at).String()))
			}
		}
		for _, f := range fields(e, "") {
			t.field(f, labels)
		}
	}
}

// sample writes one number.
func (f *family) sample(labels string, v reflect.Value) {
	if l, is := v.Interface().(Latency); is {
		f.histogram(labels, &l)
		return
	}
	f.line("", labels, number(v))
}

func (f *family) histogram(labels string, l *Latency) {
	sum := uint64(0)
	for i, n := range l.Buckets {
		sum += n
		if i >= leastBucket && i <= mostBucket {
			le := strconv.FormatFloat(float64(uint64(1)<<i)/1e9, 'g', -1, 64)
			f.line("_bucket", join(labels, label("le", le)), strconv.FormatUint(sum, 10))
		}
	}
	count := strconv.FormatUint(l.Count, 10)
	f.line("_bucket", join(labels, label("le", "+Inf")), count)
	f.line("_sum", labels, strconv.FormatFloat(float64(l.SumNs)/1e9, 'g', -1, 64))
	f.line("_count", labels, count)
}

func (f *family) line(suffix, labels, value string) {
	if labels != "" {
		labels = "{" + labels + "}"
	}
	f.text = fmt.Appendf(f.text, "%s%s%s %s\n", f.row.Name, suffix, labels, value)
}

func number(v reflect.Value) string {
	switch {
	case v.Type() == reflect.TypeFor[Counter]():
		return strconv.FormatUint(v.Addr().Interface().(*Counter).Load(), 10)
	case v.CanInt():
		return strconv.FormatInt(v.Int(), 10)
	case v.CanUint():
		return strconv.FormatUint(v.Uint(), 10)
	}
	return strconv.FormatFloat(v.Float(), 'g', -1, 64)
}

func join(labels, more string) string {
	if labels == "" || more == "" {
		return labels + more
	}
	return labels + "," + more
}

var inLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// label is one label with its value, which becomes valid UTF-8; "" without a name.
func label(name, value string) string {
	if name == "" {
		return ""
	}
	value = strings.ToValidUTF8(value[:min(len(value), maxLabelBytes)], "\ufffd")
	return name + `="` + inLabel.Replace(value) + `"`
}

var inHelp = strings.NewReplacer(`\`, `\\`, "\n", `\n`)

func helpText(help string) string { return inHelp.Replace(help) }
