// SPDX-License-Identifier: Apache-2.0

package admission

// Signal is the kind of an Export request.
type Signal uint8

// Signals.
const (
	Metrics Signal = iota + 1
	Logs
	Traces
)

// The messages of OTLP that hold more than numbers (opentelemetry-proto v1.10).
const (
	_ = iota + uint8(Traces)
	resourceMetrics
	scopeMetrics
	metric
	numberPoints
	numberPoint
	histogram
	histogramPoint
	expHistogram
	expHistogramPoint
	buckets
	summary
	summaryPoint
	exemplar
	resourceLogs
	scopeLogs
	logRecord
	resourceSpans
	scopeSpans
	span
	event
	link
	status
	resource
	scope
	entityRef
	keyValue
	anyValue
	arrayValue
	keyValueList
	quantile
	messages
)

// field is what pdata allocates for a field of a message.
type field struct {
	of   uint8  // the message that it holds
	each uint8  // what a byte of packed numbers takes, or text
	cost uint16 // what the field takes beside that
}

const (
	maxField = 16
	// deprecated is the number of lists of scopes from before OTLP 0.15, which pdata reads
	// too. Its place is maxField.
	deprecated = 1000
	// text marks one: textBytes.
	text = 1
)

// Bytes that pdata v1.61.0 allocates on 64 bits. TestCosts measures them. A full list
// doubles and is copied, so the place of an element counts three times.
const (
	request  = 128 // and what it is wrapped in
	place    = 26  // of a pointer to an element
	pair     = 125 // a KeyValue in its list
	number   = 16  // behind an interface; a small one may have 16 bytes for itself
	packed64 = 3   // a byte of packed fixed64: one more may follow, and the list is copied
	packed   = 24  // a byte of packed varints; a number of any list

	jsonElement = 240 // the largest in a list, an exemplar
	jsonObject  = 48  // the largest in a field
	jsonByte    = 3   // a text with escapes is a growing list, and then copied
)

var fields = [messages][maxField + 1]field{
	Metrics:         {1: {of: resourceMetrics, cost: place + 128}},
	Logs:            {1: {of: resourceLogs, cost: place + 128}},
	Traces:          {1: {of: resourceSpans, cost: place + 128}},
	resourceMetrics: {1: {of: resource}, 2: {of: scopeMetrics, cost: place + 112}, 3: {each: text}, maxField: {of: scopeMetrics, cost: place + 112}},
	resourceLogs:    {1: {of: resource}, 2: {of: scopeLogs, cost: place + 112}, 3: {each: text}, maxField: {of: scopeLogs, cost: place + 112}},
	resourceSpans:   {1: {of: resource}, 2: {of: scopeSpans, cost: place + 112}, 3: {each: text}, maxField: {of: scopeSpans, cost: place + 112}},
	resource:        {1: {of: keyValue, cost: pair}, 3: {of: entityRef, cost: place + 80}},
	entityRef:       {1: {each: text}, 2: {each: text}, 3: {each: text, cost: 51}, 4: {each: text, cost: 51}},
	scopeMetrics:    {1: {of: scope}, 2: {of: metric, cost: place + 96}, 3: {each: text}},
	scopeLogs:       {1: {of: scope}, 2: {of: logRecord, cost: place + 128}, 3: {each: text}},
	scopeSpans:      {1: {of: scope}, 2: {of: span, cost: place + 208}, 3: {each: text}},
	scope:           {1: {each: text}, 2: {each: text}, 3: {of: keyValue, cost: pair}},
	keyValue:        {1: {each: text}, 2: {of: anyValue}},
	keyValueList:    {1: {of: keyValue, cost: pair}},
	arrayValue:      {1: {of: anyValue, cost: 51}},
	anyValue: {
		1: {each: text, cost: 16}, 2: {cost: number}, 3: {cost: number}, 4: {cost: number},
		5: {of: arrayValue, cost: 32}, 6: {of: keyValueList, cost: 32}, 7: {each: text, cost: 24}, 8: {cost: number},
	},

	metric: {
		1: {each: text}, 2: {each: text}, 3: {each: text}, 5: {of: numberPoints, cost: 32}, 7: {of: numberPoints, cost: 40},
		9: {of: histogram, cost: 40}, 10: {of: expHistogram, cost: 40}, 11: {of: summary, cost: 32}, 12: {of: keyValue, cost: pair},
	},
	numberPoints: {1: {of: numberPoint, cost: place + 96}},
	histogram:    {1: {of: histogramPoint, cost: place + 160}},
	expHistogram: {1: {of: expHistogramPoint, cost: place + 208}},
	summary:      {1: {of: summaryPoint, cost: place + 96}},
	numberPoint:  {4: {cost: number}, 5: {of: exemplar, cost: 235}, 6: {cost: number}, 7: {of: keyValue, cost: pair}},
	histogramPoint: {
		6: {each: packed64, cost: packed}, 7: {each: packed64, cost: packed}, 8: {of: exemplar, cost: 235}, 9: {of: keyValue, cost: pair},
	},
	expHistogramPoint: {1: {of: keyValue, cost: pair}, 8: {of: buckets}, 9: {of: buckets}, 11: {of: exemplar, cost: 235}},
	buckets:           {2: {each: packed, cost: packed}},
	summaryPoint:      {6: {of: quantile, cost: place + 16}, 7: {of: keyValue, cost: pair}},
	exemplar:          {3: {cost: number}, 6: {cost: number}, 7: {of: keyValue, cost: pair}},

	logRecord: {3: {each: text}, 5: {of: anyValue}, 6: {of: keyValue, cost: pair}, 12: {each: text}},

	span: {
		3: {each: text}, 5: {each: text}, 9: {of: keyValue, cost: pair},
		11: {of: event, cost: place + 64}, 13: {of: link, cost: place + 80}, 15: {of: status},
	},
	event:  {2: {each: text}, 3: {of: keyValue, cost: pair}},
	link:   {3: {each: text}, 4: {of: keyValue, cost: pair}},
	status: {2: {each: text}},
}
