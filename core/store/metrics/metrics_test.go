package metrics

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

type counts struct {
	Hits     Counter `json:"hits" metric:"hits_total" help:"Found keys."`
	Cold     uint64  `json:"cold" metric:"evicted_total,cause=cold" help:"Evicted."`
	Odd      int     `json:"odd" metric:"odd" help:"A \\ and a\nline."`
	Orph     uint64  `json:"orphans" metric:"evicted_total,cause=orphan" help:"Others."`
	Untagged int     `json:"bare"`
}

type space struct {
	Label  string `json:"label" label:"namespace"`
	Digest string `json:"digest" label:"digest"`
	Bytes  int64  `json:"bytes" metric:"namespace_bytes" help:"Bytes."`
}

type stats struct {
	Since  float64            `json:"since_s" metric:"start_seconds" help:"Since."`
	Counts *counts            `json:"counts"`
	Codes  map[string]uint64  `json:"codes" metric:"requests_total,code" help:"By code."`
	Times  map[string]Latency `json:"times" metric:"request_duration_seconds,code" help:"Times."`
	Store  any                `json:"store"`
	Spaces []space            `json:"spaces"`
}

func TestText(t *testing.T) {
	s := stats{
		Since: 1.5, Counts: &counts{Cold: 3, Odd: -1, Orph: 4}, Codes: map[string]uint64{"put": 1, "get": 1 << 63},
		Store:  struct{ Nothing string }{},
		Spaces: []space{{"a\\b\"c\nd", "0a", 7}, {"\xff" + strings.Repeat("x", 300), "", -2}},
	}
	s.Counts.Hits.Add(2)
	require.Equal(t, `# HELP moewire_store_start_seconds Since.
# TYPE moewire_store_start_seconds gauge
moewire_store_start_seconds 1.5
# HELP moewire_store_hits_total Found keys.
# TYPE moewire_store_hits_total counter
moewire_store_hits_total 2
# HELP moewire_store_evicted_total Evicted.
# TYPE moewire_store_evicted_total counter
moewire_store_evicted_total{cause="cold"} 3
moewire_store_evicted_total{cause="orphan"} 4
# HELP moewire_store_odd A \\ and a\nline.
# TYPE moewire_store_odd gauge
moewire_store_odd -1
# HELP moewire_store_requests_total By code.
# TYPE moewire_store_requests_total counter
moewire_store_requests_total{code="get"} 9223372036854775808
moewire_store_requests_total{code="put"} 1
# HELP moewire_store_namespace_bytes Bytes.
# TYPE moewire_store_namespace_bytes gauge
moewire_store_namespace_bytes{namespace="a\\b\"c\nd",digest="0a"} 7
moewire_store_namespace_bytes{namespace="`+"\ufffd"+strings.Repeat("x", 255)+`",digest=""} -2
`, string(Text(&s)))
	require.Equal(t, string(Text(s)), string(Text(&s)))
	b, err := json.Marshal(&s)
	require.NoError(t, err)
	require.Contains(t, string(b), `"hits":2,"cold":3`)
}

func TestRows(t *testing.T) {
	rows := Rows(&stats{Counts: &counts{}})
	keys := make([]string, len(rows))
	for i, r := range rows {
		keys[i] = r.Key
	}
	require.Equal(t, []string{
		"since_s", "counts.hits", "counts.cold", "counts.odd", "counts.orphans", "counts.bare", "codes", "times", "spaces[].bytes",
	}, keys)
	require.Equal(t, Row{Key: "counts.cold", Name: "evicted_total", Help: "Evicted.", Label: "cause=cold"}, rows[2])
	require.Empty(t, rows[5].Name)
}

// The number of elements with samples is bounded.
func TestManySpaces(t *testing.T) {
	text := Text(&stats{Spaces: make([]space, 10*MaxNamespaces)})
	require.Equal(t, MaxNamespaces, strings.Count(string(text), "moewire_store_namespace_bytes{"))
}

// A histogram has what a plain list of times has.
func TestHistogram(t *testing.T) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 1))
	times := []time.Duration{-1, 0, 1, 1<<12 - 1, 1 << 12, time.Hour}
	for range 1000 {
		times = append(times, time.Duration(rng.Uint64N(1<<rng.UintN(45))))
	}
	var h Histogram
	for _, d := range times {
		h.Observe(d)
	}
	said := string(Text(&stats{Times: map[string]Latency{"get": h.Now()}}))
	sum := uint64(0)
	for _, d := range times {
		sum += uint64(max(0, d))
	}
	require.EqualValues(t, len(times), h.Now().Count)
	require.Equal(t, sum, h.Now().SumNs)
	for le, text := range map[time.Duration]string{
		1 << 12: "4.096e-06", 1 << 20: "0.001048576", 1 << 30: "1.073741824", 1 << 35: "34.359738368",
	} {
		n := 0
		for _, d := range times {
			if d < le {
				n++
			}
		}
		require.Contains(t, said, line(`request_duration_seconds_bucket{code="get",le="`+text+`"}`, n))
	}
	require.Contains(t, said, line(`request_duration_seconds_bucket{code="get",le="+Inf"}`, len(times)))
	require.Contains(t, said, line(`request_duration_seconds_count{code="get"}`, len(times)))
}

func line(sample string, n int) string { return "\n" + Prefix + sample + " " + jsonOf(n) + "\n" }

func jsonOf(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

func TestCountingAllocatesNothing(t *testing.T) {
	var h Histogram
	var c Counter
	require.Zero(t, testing.AllocsPerRun(100, func() {
		h.Observe(time.Millisecond)
		c.Add(1)
	}))
}

// Whatever a namespace is called, its sample is one line, with the value that was there.
func FuzzLabel(f *testing.F) {
	f.Add("a")
	f.Add("\\\"\n\r\x00\xff{}=,#")
	f.Fuzz(func(t *testing.T, name string) {
		text := string(Text(&stats{Spaces: []space{{Label: name, Bytes: 5}}}))
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if want := 6; len(lines) != want { // since_s has three of them
			t.Fatalf("%d lines of %q", len(lines), text)
		}
		rest, ok := strings.CutPrefix(lines[5], Prefix+`namespace_bytes{namespace="`)
		if !ok {
			t.Fatal(lines[5])
		}
		value, rest := unquote(rest)
		if rest != `,digest=""} 5` {
			t.Fatalf("%q behind the label", rest)
		}
		if want := strings.ToValidUTF8(name[:min(len(name), 256)], "\ufffd"); value != want {
			t.Fatalf("%q, not %q", value, want)
		}
	})
}

// unquote reads the value of a label until its closing quote, as the format has it.
func unquote(s string) (value, rest string) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return b.String(), s[i+1:]
		case s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(map[byte]byte{'n': '\n', '\\': '\\', '"': '"'}[s[i]])
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), "no end"
}
