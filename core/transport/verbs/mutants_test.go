//lint:file-ignore U1000 the lines of the edits use what is here

package verbs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// dcMutant is a defect that TestMutants puts in, to show that it would be found.
type dcMutant uint8

const (
	dcSound     dcMutant = iota
	dcNoQuota            // a peer keeps its initiator as long as it likes
	dcEager              // an initiator is reset before it is drained
	dcForgetful          // a peer that waits is not served after a reset
	numDCMutants
)

// planted is the mutant that is in force now, in a build that has them: the lines of
// the edits ask for it.
var planted dcMutant

func hasMutant(m dcMutant) bool { return planted == m }

// TestMutants: each of these defects is found, and nothing is found without.
func TestMutants(t *testing.T) {
	if !testenv.Mutants(t,
		testenv.Edit{"dcpool.go", "p.dcis[on].left > 0\n", "p.dcis[on].left > 0 || hasMutant(dcNoQuota)\n"},
		testenv.Edit{"dcpool.go", "if d.outstanding > 0 {\n\t\treturn nil, false", "if d.outstanding > 0 && !(hasMutant(dcEager) && d.state == dciDraining) {\n\t\treturn nil, false"},
		testenv.Edit{"dcpool.go", "\t\td.state = dciUsable\n", "\t\td.state = dciUsable\n\t\tif hasMutant(dcForgetful) {\n\t\t\treturn nil, nil\n\t\t}\n"},
	) {
		return
	}
	seed := testenv.Seed(t)
	for planted = dcSound; planted < numDCMutants; planted++ {
		t.Run(fmt.Sprint(planted), func(t *testing.T) {
			noticed := false
			for i := uint64(0); i < 300 && !noticed; i++ {
				noticed = storm(seed+i) != nil
			}
			require.Equal(t, planted != dcSound, noticed)
		})
	}
}
