package protocol

// Indices of the words in a params record: what a source believes of the call. They are
// written before arrive and read after it, so that a mismatch can be explained on both sides.
//
//mw:kernels
const (
	ParamOp        = 0 // the operation's number plus one
	ParamMaxTokens = 1 // M
	ParamHidden    = 2 // H
	ParamExperts   = 3 // E
	ParamFlags     = 4
	ParamTopK      = 5 // K
	ParamTokens    = 6 // of the source
	ParamExtras    = 7 // of flat rows: ExtraBits of width per extra column
	NumParams      = 8
)

// ExtraBits is how many bits of ParamExtras say the width of one column.
const ExtraBits = 16
