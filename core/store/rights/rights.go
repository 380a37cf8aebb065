// Package rights is what the key of a client of the block store allows: words behind the key in the key file of a server.
package rights

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// Rights are those of one key. The zero Rights are all that there are.
type Rights struct {
	ReadOnly bool
	// Tenants are the owners of namespaces that the key may open; none: of all.
	Tenants []message.Tenant
	// QuotaBytes bounds what the namespaces of each of Tenants take together; 0: no bound.
	QuotaBytes int64
}

// reads are the requests that change nothing. Bad is one of them: a block is dropped only if the server itself finds it damaged.
var reads = [message.NumCodes]bool{
	message.Open: true, message.Get: true, message.Exists: true, message.List: true, message.Stats: true, message.Lookup: true,
	message.Read: true, message.Release: true, message.Bad: true, message.Share: true,
}

// Asks reports whether the key may ask that of a namespace that it may open.
func (r *Rights) Asks(code message.Code) bool {
	return !r.ReadOnly || int(code) < len(reads) && reads[code]
}

// Opens reports whether the key may open the namespace of a digest.
func (r *Rights) Opens(digest [32]byte) bool {
	return !r.IsLimited() || slices.Contains(r.Tenants, message.TenantOfDigest(digest))
}

// IsLimited reports whether there are namespaces that the key may not open.
func (r *Rights) IsLimited() bool { return len(r.Tenants) > 0 }

// Parse reads the words behind a key, as wire.Terms wants it: it returns Rights.
func Parse(words []string) (any, error) {
	var r Rights
	for i, word := range words {
		name, value, _ := strings.Cut(word, "=")
		switch {
		case word == "read" && !r.ReadOnly:
			r.ReadOnly = true
		case name == "salt" && len(word) > len(name):
			r.Tenants = append(r.Tenants, message.TenantOf(value))
		case name == "quota" && r.QuotaBytes == 0:
			var err error
			if r.QuotaBytes, err = size(value); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("word %d behind the key is none that there is, or there twice; allowed: read, salt=TEXT, quota=SIZE", i+1)
		}
	}
	if r.QuotaBytes > 0 && !r.IsLimited() {
		return nil, fmt.Errorf("a quota is that of a salt; allowed: quota=SIZE together with salt=TEXT")
	}
	return r, nil
}

// size reads a number of bytes, such as 512MiB.
func size(text string) (int64, error) {
	digits, shift := text, 0
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if before, found := strings.CutSuffix(text, unit); found {
			digits, shift = before, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("the quota is no number of bytes above 0; allowed: digits, and KiB, MiB, GiB or TiB behind them")
	}
	return n << shift, nil
}

// Of are the rights that a ring's terms say; all of them where the ring has no use for terms.
func Of(terms any) Rights {
	r, _ := terms.(Rights)
	return r
}

// Quotas are those of all keys of a ring. Of several for one tenant the smallest one counts.
func Quotas(ring *wire.Keyring) map[[16]byte]int64 {
	all := map[[16]byte]int64{}
	ring.EachTerms(func(terms any) {
		r := Of(terms)
		for _, tenant := range r.Tenants {
			if before, known := all[tenant]; r.QuotaBytes > 0 && (!known || r.QuotaBytes < before) {
				all[tenant] = r.QuotaBytes
			}
		}
	})
	return all
}
