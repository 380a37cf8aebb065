package server_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/metrics"
	"github.com/moewire/moewire/core/store/server"
)

// counting does random requests, and counts by itself what must come of them.
type counting struct {
	*raw
	rng    *rand.Rand
	blocks map[string]string
	want   map[string]int // by sample of the text
}

func (c *counting) key() string { return fmt.Sprint("key", c.rng.UintN(40)) }

func (c *counting) count(sample string, n int) { c.want[metrics.Prefix+sample] += n }

func (c *counting) step() {
	switch c.rng.UintN(5) {
	case 0:
		c.get(message.Get, "get")
	case 1:
		c.get(message.Lookup, "lookup")
	case 2:
		c.delete(c.key())
	case 3:
		c.badPut(c.key())
	default:
		c.onePut(c.key())
	}
}

func (c *counting) asked(code string, status message.Status) {
	c.count(`requests_total{code="`+code+`"}`, 1)
	c.count(`request_duration_seconds_count{code="`+code+`"}`, 1)
	c.count(`replies_total{status="`+status.String()+`"}`, 1)
	if status.Refuses() {
		c.count(`refused_puts_total{cause="`+status.String()+`"}`, 1)
	}
}

func (c *counting) get(code message.Code, name string) {
	keys := make([]string, 1+c.rng.UintN(9))
	for i := range keys {
		keys[i] = c.key()
		if data, is := c.blocks[keys[i]]; is {
			c.count("hits_total", 1)
			if code == message.Get {
				c.count("sent_bytes_total", len(data))
			}
			continue
		}
		c.count("misses_total", 1)
	}
	said := message.Request{NumKeys: uint16(len(keys))}
	if code == message.Lookup {
		said.DeadlineUs = 1 // how long the handles live
	}
	status, _ := c.do(code, said, table(keys...))
	require.Equal(c.t, message.OK, status)
	c.asked(name, status)
}

func (c *counting) delete(key string) {
	status, _ := c.do(message.Delete, message.Request{NumKeys: 1}, table(key))
	if _, is := c.blocks[key]; is {
		c.count("deleted_blocks_total", 1)
	}
	delete(c.blocks, key)
	c.asked("delete", status)
}

func (c *counting) badPut(key string) {
	said, payload := c.put(key, []byte("never stored"))
	said.Tag[3] ^= 1
	status, _ := c.do(message.Put, said, payload)
	c.asked("put", status)
	if _, is := c.blocks[key]; is {
		require.Equal(c.t, message.Conflict, status)
		c.count("conflicts_total", 1)
		return
	}
	require.Equal(c.t, message.BadTag, status)
	c.count("received_bytes_total", len(payload)-len(key))
	c.count(`integrity_failures_total{found="put"}`, 1)
}

func (c *counting) onePut(key string) {
	data := key + strings.Repeat("x", int(c.rng.UintN(3)))
	said, payload := c.put(key, []byte(data))
	status, _ := c.do(message.Put, said, payload)
	c.asked("put", status)
	there, is := c.blocks[key]
	switch {
	case !is:
		c.blocks[key] = data
		c.count("stored_blocks_total", 1)
		c.count("received_bytes_total", len(data))
	case there == data:
		c.count("existing_puts_total", 1)
	default:
		c.count("conflicts_total", 1)
	}
}

func samples(t *testing.T, s *server.Server) map[string]string {
	found := map[string]string{}
	for l := range strings.Lines(string(metrics.Text(s.Stats()))) {
		if !strings.HasPrefix(l, "#") {
			at := strings.LastIndexByte(l, ' ')
			require.NotContains(t, found, l[:at], "it is there twice")
			found[l[:at]] = strings.TrimSpace(l[at:])
		}
	}
	return found
}

// The numbers are those of a plain count of what was asked.
func TestMetricsCount(t *testing.T) {
	m, err := medium.NewMemory(64 << 20)
	require.NoError(t, err)
	own, err := store.Open(store.Config{Medium: m})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	s, _ := serve(t, func(c *server.Config) { c.Store, c.Stats = server.Of(own), func() any { return own.Stats() } })
	c := &counting{open(t, s), rand.New(rand.NewPCG(testenv.Seed(t), 9)), map[string]string{}, map[string]int{}}
	for range 600 {
		c.step()
	}
	bytes := 0
	for _, data := range c.blocks {
		bytes += len(data)
	}
	c.asked("open", message.OK)
	c.count("blocks", len(c.blocks))
	c.count("connections_total", 1)
	c.count("clients", 1)
	c.count("reserved_bytes", 0)
	digest := fmt.Sprintf("%x", name.Digest())
	for what, n := range map[string]int{
		"blocks": len(c.blocks), "bytes": bytes, "hits_total": c.want[metrics.Prefix+"hits_total"],
		"misses_total": c.want[metrics.Prefix+"misses_total"],
	} {
		c.count(fmt.Sprintf(`namespace_%s{digest="%s",namespace="m"}`, what, digest[:16]), n)
	}
	last := metrics.Prefix + `request_duration_seconds_count{code="` // counted behind the last byte of an answer
	require.Eventually(t, func() bool {
		now, same := samples(t, s), true
		for sample, n := range c.want {
			same = same && (!strings.HasPrefix(sample, last) || now[sample] == strconv.Itoa(n))
		}
		return same
	}, 20*time.Second, time.Millisecond)
	found := samples(t, s)
	for sample, n := range c.want {
		require.Equal(t, strconv.Itoa(n), found[sample], sample)
	}
	capacity := 0
	for _, state := range []string{"live", "dead", "free"} {
		n, err := strconv.Atoi(found[metrics.Prefix+`bytes{state="`+state+`"}`])
		require.NoError(t, err)
		capacity += n
	}
	require.Equal(t, found[metrics.Prefix+"capacity_bytes"], strconv.Itoa(capacity))
}

// What a client is sent has the numbers of the text.
func TestStatsMessageHasTheSameNumbers(t *testing.T) {
	s, _ := serve(t)
	r := open(t, s)
	r.mustPut("key", []byte("data"))
	status, text := r.do(message.Stats, message.Request{}, nil)
	require.Equal(t, message.OK, status)
	var said struct {
		Counts  map[string]uint64 `json:"counts"`
		Puts    map[string]uint64 `json:"refused_puts"`
		Latency map[string]struct {
			Count uint64 `json:"count"`
		} `json:"latency"`
	}
	require.NoError(t, json.Unmarshal(text, &said))
	require.EqualValues(t, 4, said.Counts["bytes_in"])
	require.Contains(t, said.Puts, message.Full.String())
	require.EqualValues(t, 1, said.Latency["put"].Count)
}

// Every number has a name and a text, and docs/observability.md has the table of all.
func TestMetricsAreDocumented(t *testing.T) {
	var table strings.Builder
	names := map[string]string{}
	for _, r := range metrics.Rows(&server.Stats{Counts: &server.Counters{}, Store: store.Stats{}}) {
		require.NotEmpty(t, r.Name, r.Key)
		require.NotEmpty(t, r.Help, r.Key)
		key := r.Name + "{" + r.Label + "}"
		require.NotContains(t, names, key, r.Key)
		names[key] = r.Key
		labels := ""
		if label, value, fixed := strings.Cut(r.Label, "="); fixed {
			labels = fmt.Sprintf("{%s=%q}", label, value)
		} else if label != "" {
			labels = "{" + label + "}"
		}
		fmt.Fprintf(&table, "| `%s` | `%s%s` | %s |\n", r.Key, r.Name, labels, r.Help)
	}
	docs, err := os.ReadFile("../../../docs/observability.md")
	require.NoError(t, err)
	if !strings.Contains(string(docs), table.String()) {
		t.Fatalf("docs/observability.md has not this table:\n%s", table.String())
	}
}
