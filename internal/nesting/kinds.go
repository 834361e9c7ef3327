// SPDX-License-Identifier: Apache-2.0

package nesting

import "strings"

// Kind is a type of messages: what its fields that have a length become.
type Kind [maxField + 1]field

const (
	maxField = 16
	// deprecated is the number of fields that pdata reads from old senders. Kind
	// has it at 0, which no field may have.
	deprecated = 1000
)

// field is what pdata keeps of one field of a message. A message without bytes for
// one is a part of its parent, however often it comes.
type field struct {
	each    uint16 // bytes for one
	bytes   uint8  // and for each of its own bytes
	owner   owner  // of the attribute that it is
	carries bool   // there are attributes with an owner in it
	of      *Kind  // nil for what is no message
}

// owner says which limits are those of an attribute.
type owner uint8

const (
	nobody  owner = iota // it is none, or one inside of another
	records              // Limits.Attributes
	points               // Limits.PointAttributes
	anybody              // the lesser of the two
	owners
)

func (k *Kind) field(number uint32) *field {
	switch {
	case number <= maxField:
		return &k[number]
	case number == deprecated:
		return &k[0]
	default:
		return nil
	}
}

// Sizes of pdata's structs, as Go's allocator rounds them. TestSizes decodes
// messages and measures what is allocated.
const (
	sizeKeyValue = 40
	sizeValue    = 16
	sizeBox      = 16 // what holds a value of one kind or another
	sizeSpan     = 208
	slot         = 16 // of a list of pointers, which has room for more
	spare        = 2  // a list has grown to twice its length at most
	// numbers are what a byte becomes in a list of numbers of one byte each.
	numbers = 8 * spare
)

var (
	text  = field{each: 12, bytes: 1}
	texts = field{each: sizeBox * spare, bytes: 1}
)

// of is a message that its parent holds, pointer a message that a list points to, and
// inline a message in a list of structs.
func of(k *Kind) field                   { return field{of: k} }
func pointer(size uint16, k *Kind) field { return field{each: size + slot, of: k} }
func inline(size uint16, k *Kind) field  { return field{each: size * spare, of: k} }

// attribute is one that counts.
func attribute(of owner) field {
	f := entry
	f.owner = of
	return f
}

// The kinds that a value may be inside of refer to each other.
var (
	value    Kind
	list     = Kind{1: inline(sizeValue, &value)}
	keyValue = Kind{1: text, 2: of(&value)}
	entry    = inline(sizeKeyValue, &keyValue)
	keyList  = Kind{1: entry}
)

func init() {
	value = Kind{
		1: {each: sizeBox + text.each, bytes: 1}, 5: pointer(24+sizeBox, &list), 6: pointer(24+sizeBox, &keyList),
		7: {each: 24 + text.each, bytes: 1},
	}
}

var (
	entity   = Kind{1: text, 2: text, 3: texts, 4: texts}
	resource = Kind{1: attribute(records), 3: pointer(80, &entity)}
	scope    = Kind{1: text, 2: text, 3: attribute(records)}

	exemplar  = Kind{7: attribute(points)}
	exemplars = field{each: (72 + sizeBox) * spare, of: &exemplar}
	number    = pointer(96+sizeBox, &Kind{7: attribute(points), 5: exemplars})
	buckets   = field{bytes: numbers}
	// A point's numbers of 8 bytes, each in a field of its own, become a list of such.
	histogram = Kind{1: {each: 160 + slot, bytes: spare, of: &Kind{9: attribute(points), 8: exemplars}}}
	exponent  = Kind{1: {each: 192 + slot, bytes: 1, of: &Kind{1: attribute(points), 8: buckets, 9: buckets, 11: exemplars}}}
	summary   = Kind{1: pointer(96, &Kind{7: attribute(points), 6: pointer(16, nil)})}
	metric    = Kind{
		1: text, 2: text, 3: text, 12: attribute(points),
		5: pointer(24, &Kind{1: number}), 7: pointer(32, &Kind{1: number}),
		9: pointer(32, &histogram), 10: pointer(32, &exponent), 11: pointer(24, &summary),
	}

	record = Kind{3: text, 5: of(&value), 6: attribute(records), 12: text}

	event = Kind{2: text, 3: attribute(records)}
	link  = Kind{3: text, 4: attribute(records)}
	span  = Kind{3: text, 5: text, 9: attribute(records), 11: pointer(64, &event), 13: pointer(80, &link), 15: of(&Kind{2: text})}

	// The lists of numbers of a profile may be one number to a field.
	sample  = field{each: 128 + slot, bytes: numbers}
	profile = Kind{2: sample, 9: text, 10: text, 11: {bytes: numbers}}
	tables  = Kind{
		1: {each: 64 + slot, bytes: numbers}, 2: {each: 80 + slot, bytes: numbers, of: &Kind{3: pointer(24, nil)}},
		3: pointer(32, nil), 4: pointer(24, nil), 5: texts, 6: pointer(32, &Kind{2: of(&value)}), 7: {each: 24 + slot, bytes: numbers},
	}
)

// The requests of OTLP.
var (
	Metrics  = request(pointer(96, &metric))
	Logs     = request(pointer(128, &record))
	Traces   = request(pointer(sizeSpan, &span))
	Profiles = request(pointer(208, &profile))
)

func init() {
	Profiles[2] = of(&tables)
	seen := map[*Kind]bool{}
	for _, kind := range requests {
		kind.mark(seen)
	}
}

// mark says of each field whether there are attributes with an owner in it.
func (k *Kind) mark(seen map[*Kind]bool) (carries bool) {
	if seen[k] {
		return k.carries()
	}
	seen[k] = true
	for i := range k {
		if f := &k[i]; f.of != nil && f.owner == nobody {
			f.carries = f.of.mark(seen)
		}
	}
	return k.carries()
}

func (k *Kind) carries() bool {
	for i := range k {
		if k[i].carries || k[i].owner != nobody {
			return true
		}
	}
	return false
}

// requests are by the method of gRPC.
var requests = map[string]*Kind{
	"/opentelemetry.proto.collector.metrics.v1.MetricsService/Export":              Metrics,
	"/opentelemetry.proto.collector.logs.v1.LogsService/Export":                    Logs,
	"/opentelemetry.proto.collector.trace.v1.TraceService/Export":                  Traces,
	"/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export": Profiles,
}

// paths end the URL path of a push; a receiver may put more before them.
var paths = map[string]*Kind{"/v1/metrics": Metrics, "/v1/logs": Logs, "/v1/traces": Traces, "/v1development/profiles": Profiles}

// Of returns the kind of a push by its method of gRPC, and nil for what is no push.
func Of(method string) *Kind { return requests[method] }

// At returns the kind of a push by the path of its URL, and nil for what is no push.
func At(path string) *Kind {
	for end, kind := range paths {
		if strings.HasSuffix(path, end) {
			return kind
		}
	}
	return nil
}

// request is a request for data of a kind, by resource and scope.
func request(data field) *Kind {
	in := pointer(112, &Kind{1: of(&scope), 2: data, 3: text})
	return &Kind{1: pointer(128, &Kind{0: in, 1: of(&resource), 2: in, 3: text})}
}
