package multihost

import (
	"fmt"
	"strings"

	"github.com/moewire/moewire/core/wire"
)

// refusals are how often connections of a group were refused, by reason.
type refusals map[wire.Reason]uint64

func refusalsOf(c *wire.Counters) refusals {
	all := refusals{}
	if c != nil {
		c.Each(func(r wire.Reason, n uint64) { all[r] = n })
	}
	return all
}

// since says what has been refused since then, "" if nothing has.
func (before refusals) since(c *wire.Counters) string {
	var texts []string
	if c != nil {
		c.Each(func(r wire.Reason, n uint64) {
			if n -= before[r]; n > 0 {
				texts = append(texts, fmt.Sprintf("%s, %d times", r.Text(), n))
			}
		})
	}
	return strings.Join(texts, "; ")
}

// explainMissing says that it may be this rank's own fault that others are late, or
// that of keys.
func (g *remoteRendezvous) explainMissing() string {
	if s := g.v.controls.Load().Stats(); s.AcceptFailures > 0 {
		return fmt.Sprintf(" (here, a connection could not be taken or made, %d times: %v)", s.AcceptFailures, s.AcceptFailure)
	}
	if texts := g.refused.since(g.v.cfg.Counters); texts != "" {
		return fmt.Sprintf(" (connections were refused here: %s: are the keys the same everywhere?)", texts)
	}
	return ""
}
