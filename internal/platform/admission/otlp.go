// SPDX-License-Identifier: Apache-2.0

package admission

// Message is one of OTLP (opentelemetry-proto v1.10), by the numbers of its fields.
type Message [maxField + 1]field

// field is what pdata allocates for a field of a message. A field that holds neither a message
// nor numbers is a text: textBytes.
type field struct {
	of   *Message // that it holds
	each int      // what a byte of packed numbers takes
	cost int      // what the field takes beside that
}

const (
	maxField = 16
	// deprecated is the number of lists of scopes from before OTLP 0.15, which pdata reads
	// too. Its index is maxField.
	deprecated = 1000
)

// Bytes that pdata v1.61.0 allocates on 64 bits. TestCosts measures them. A full list
// doubles and is copied, so the slot of an element counts three times.
const (
	requestCost = 128 // and what it is wrapped in
	slot        = 26  // of a pointer to an element
	pair        = 125 // a KeyValue in its list
	number      = 16  // behind an interface; a small one may have 16 bytes for itself
	packed64    = 3   // a byte of packed fixed64: one more may follow, and the list is copied
	packed      = 24  // a byte of packed varints; a number of any list
	jsonElement = 240 // the largest in a list, an exemplar
	jsonObject  = 48  // the largest in a field
	jsonByte    = 3   // a text with escapes is a growing list, and then copied
)

var metrics, logs, traces, attribute = requests()

// The Export requests.
var (
	Metrics = metrics
	Logs    = logs
	Traces  = traces
)

func requests() (metrics, logs, traces, attribute *Message) {
	var resourceMetrics, scopeMetrics, metric, numberPoints, numberPoint, histogram, histogramPoint, expHistogram, expHistogramPoint Message
	var buckets, summary, summaryPoint, exemplar, resourceLogs, scopeLogs, logRecord, resourceSpans, scopeSpans, span, event, link Message
	var resource, scope, entityRef, keyValue, anyValue, arrayValue, keyValueList, quantile Message
	metrics = &Message{1: {of: &resourceMetrics, cost: slot + 128}}
	logs = &Message{1: {of: &resourceLogs, cost: slot + 128}}
	traces = &Message{1: {of: &resourceSpans, cost: slot + 128}}
	resourceMetrics = Message{1: {of: &resource}, 2: {of: &scopeMetrics, cost: slot + 112}, maxField: {of: &scopeMetrics, cost: slot + 112}}
	resourceLogs = Message{1: {of: &resource}, 2: {of: &scopeLogs, cost: slot + 112}, maxField: {of: &scopeLogs, cost: slot + 112}}
	resourceSpans = Message{1: {of: &resource}, 2: {of: &scopeSpans, cost: slot + 112}, maxField: {of: &scopeSpans, cost: slot + 112}}
	resource = Message{1: {of: &keyValue, cost: pair}, 3: {of: &entityRef, cost: slot + 80}}
	entityRef = Message{3: {cost: 51}, 4: {cost: 51}}
	scopeMetrics = Message{1: {of: &scope}, 2: {of: &metric, cost: slot + 96}}
	scopeLogs = Message{1: {of: &scope}, 2: {of: &logRecord, cost: slot + 128}}
	scopeSpans = Message{1: {of: &scope}, 2: {of: &span, cost: slot + 208}}
	scope = Message{3: {of: &keyValue, cost: pair}}
	keyValue = Message{2: {of: &anyValue}}
	keyValueList = Message{1: {of: &keyValue, cost: pair}}
	arrayValue = Message{1: {of: &anyValue, cost: 51}}
	anyValue = Message{
		1: {cost: 16}, 2: {cost: number}, 3: {cost: number}, 4: {cost: number},
		5: {of: &arrayValue, cost: 32}, 6: {of: &keyValueList, cost: 32}, 7: {cost: 24}, 8: {cost: number},
	}
	metric = Message{
		5: {of: &numberPoints, cost: 32}, 7: {of: &numberPoints, cost: 40},
		9: {of: &histogram, cost: 40}, 10: {of: &expHistogram, cost: 40}, 11: {of: &summary, cost: 32}, 12: {of: &keyValue, cost: pair},
	}
	numberPoints = Message{1: {of: &numberPoint, cost: slot + 96}}
	histogram = Message{1: {of: &histogramPoint, cost: slot + 160}}
	expHistogram = Message{1: {of: &expHistogramPoint, cost: slot + 208}}
	summary = Message{1: {of: &summaryPoint, cost: slot + 96}}
	numberPoint = Message{4: {cost: number}, 5: {of: &exemplar, cost: 235}, 6: {cost: number}, 7: {of: &keyValue, cost: pair}}
	histogramPoint = Message{
		6: {each: packed64, cost: packed}, 7: {each: packed64, cost: packed}, 8: {of: &exemplar, cost: 235}, 9: {of: &keyValue, cost: pair},
	}
	expHistogramPoint = Message{1: {of: &keyValue, cost: pair}, 8: {of: &buckets}, 9: {of: &buckets}, 11: {of: &exemplar, cost: 235}}
	buckets = Message{2: {each: packed, cost: packed}}
	summaryPoint = Message{6: {of: &quantile, cost: slot + 16}, 7: {of: &keyValue, cost: pair}}
	exemplar = Message{3: {cost: number}, 6: {cost: number}, 7: {of: &keyValue, cost: pair}}
	logRecord = Message{5: {of: &anyValue}, 6: {of: &keyValue, cost: pair}}
	span = Message{9: {of: &keyValue, cost: pair}, 11: {of: &event, cost: slot + 64}, 13: {of: &link, cost: slot + 80}}
	event = Message{3: {of: &keyValue, cost: pair}}
	link = Message{4: {of: &keyValue, cost: pair}}
	return metrics, logs, traces, &keyValue
}
