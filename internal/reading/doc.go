// SPDX-License-Identifier: Apache-2.0

// Package reading is the catalogue of what the product reads: for each metric and its
// attributes the field, the subject, the unit and the range. Every reader
// takes its points by it, and every writer its names and units. It is pure: it
// knows neither pdata nor a clock; internal/reading/metricreading applies it to
// OTLP.
//
// It decides what a point means. Everything that reads or writes metrics calls it.
package reading // import "github.com/gpu-collector/gpu-collector/internal/reading"
