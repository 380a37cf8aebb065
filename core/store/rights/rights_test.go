package rights

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

func TestParse(t *testing.T) {
	a, b := message.TenantOf("a"), message.TenantOf("b=c")
	for text, want := range map[string]Rights{
		"":                             {},
		"read":                         {ReadOnly: true},
		"salt=a":                       {Tenants: []message.Tenant{a}},
		"salt=":                        {Tenants: []message.Tenant{message.TenantOf("")}},
		"salt=a salt=b=c read":         {ReadOnly: true, Tenants: []message.Tenant{a, b}},
		"quota=1000 salt=a":            {Tenants: []message.Tenant{a}, QuotaBytes: 1000},
		"salt=a quota=3KiB":            {Tenants: []message.Tenant{a}, QuotaBytes: 3 << 10},
		"salt=a quota=3MiB":            {Tenants: []message.Tenant{a}, QuotaBytes: 3 << 20},
		"salt=a quota=10GiB":           {Tenants: []message.Tenant{a}, QuotaBytes: 10 << 30},
		"salt=a quota=8388607TiB":      {Tenants: []message.Tenant{a}, QuotaBytes: 8388607 << 40},
		"salt=a read quota=4294967296": {ReadOnly: true, Tenants: []message.Tenant{a}, QuotaBytes: 4 << 30},
	} {
		got, err := Parse(strings.Fields(text))
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}

// What is not understood is refused, and not quoted: it may be a key.
func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"write", "Read", "read read", "salt", "quota", "read,salt=a", "quota=1GiB", "read quota=1", "quota=", "salt=a quota=0",
		"salt=a quota=-1", "salt=a quota=1GB", "salt=a quota=GiB", "salt=a quota=1.5GiB", "salt=a quota=8388608TiB", "salt=a quota=1KiBMiB",
		"salt=a quota=1 quota=2", "namespace=m", "salt=a quota=9223372036854775808", "salt=a secretsecret",
	} {
		_, err := Parse(strings.Fields(text))
		require.ErrorContains(t, err, "allowed", text)
		require.NotContains(t, err.Error(), "secretsecret")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("read salt=a quota=1GiB")
	f.Add("quota=")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(strings.Fields(text))
		if err != nil {
			return
		}
		if r := got.(Rights); r.QuotaBytes < 0 || r.QuotaBytes > 0 && !r.IsLimited() {
			t.Fatal(r)
		}
	})
}

const key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e"

// The smallest quota of a tenant counts, whichever key comes first.
func TestQuotas(t *testing.T) {
	text := "1 " + key + "01\n2 " + key + "02 salt=a quota=5\n3 " + key + "03 salt=b salt=a quota=4\n4 " + key + "04 read salt=b\n5 " + key +
		"05 salt=a quota=6\n"
	ring, err := wire.NewKeyringWithTerms(func() ([]byte, error) { return []byte(text), nil }, Parse)
	require.NoError(t, err)
	require.Equal(t, map[[16]byte]int64{message.TenantOf("a"): 4, message.TenantOf("b"): 4}, Quotas(ring))
}
