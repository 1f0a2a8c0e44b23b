#include "server/page/page_routes.h"

#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "httplib.h"
#include "server/page/page_html.h"

namespace ziggurat {
namespace {

constexpr char kJsonType[] = "application/json";
constexpr char kHtmlType[] = "text/html; charset=utf-8";

/// 128 bits that nobody can guess.
std::string MakeNonce() {
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&nonce, absl::Hex(random(), absl::kZeroPad8));
  return nonce;
}

void SetHeaders(const std::string& content_security_policy, httplib::Response* response) {
  response->set_header("Cache-Control", "no-store");
  response->set_header("Content-Security-Policy", content_security_policy);
  response->set_header("Cross-Origin-Resource-Policy", "same-origin");
  response->set_header("Referrer-Policy", "no-referrer");
  response->set_header("X-Content-Type-Options", "nosniff");
  response->set_header("X-Frame-Options", "DENY");
}

void AnswerJson(std::string text, httplib::Response* response) {
  SetHeaders("default-src 'none'; frame-ancestors 'none'", response);
  response->set_content(std::move(text), kJsonType);
}

void AnswerPage(httplib::Response* response) {
  const std::string nonce = MakeNonce();
  SetHeaders(
      absl::StrCat("default-src 'none'; script-src 'nonce-", nonce, "'; style-src 'nonce-", nonce,
                   "'; connect-src 'self'; img-src data:; base-uri 'none'; "
                   "form-action 'none'; frame-ancestors 'none'"),
      response);
  response->set_content(PageHtml(nonce), kHtmlType);
}

}  // namespace

std::string PageHtml(const std::string& nonce) {
  return absl::StrReplaceAll(kPageHtml, {{"@NONCE@", nonce}});
}

void AddPageRoutes(PageData* page, std::function<Readiness()> readiness, httplib::Server* server) {
  using httplib::Request;
  using httplib::Response;
  server->Get("/", [](const Request&, Response& response) { AnswerPage(&response); });
  server->Get("/api/state",
              [page, readiness = std::move(readiness)](const Request&, Response& response) {
                AnswerJson(*page->State(readiness()), &response);
              });
  server->Get("/api/history", [page](const Request&, Response& response) {
    AnswerJson(page->HistoryText(), &response);
  });
  server->Get(R"(/api/requests/([0-9]{1,64}))", [page](const Request& request, Response& response) {
    RequestId id = 0;
    std::optional<std::string> text;
    if (absl::SimpleAtoi(request.matches[1].str(), &id)) text = page->Request(id);
    AnswerJson(text.value_or(R"({"request":null})"), &response);
  });
}

}  // namespace ziggurat
