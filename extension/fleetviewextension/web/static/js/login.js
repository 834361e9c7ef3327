// SPDX-License-Identifier: Apache-2.0
import { authorization, basic, bearer, keep, schemes } from './auth.js';
import { $, setText } from './dom.js';

// startLogin asks for a credential where the gateway wants one. changed is told
// of each that is to be tried.
export function startLogin(changed) {
  const box = $('login');
  const button = $('account');
  const kind = () => box.querySelector('[name="kind"]:checked').value;

  const show = () => {
    $('login-token-field').hidden = kind() !== 'token';
    $('login-user-field').hidden = $('login-password-field').hidden = kind() === 'token';
  };
  const first = () => $(kind() === 'token' ? 'login-token' : 'login-user');
  const label = () => {
    button.hidden = !authorization() && !box.dataset.needed;
    setText(button, authorization() ? 'Log out' : 'Log in');
  };
  const forget = () => { for (const id of ['login-token', 'login-password']) $(id).value = ''; };

  box.addEventListener('change', (e) => {
    if (e.target.name === 'kind') show();
  });
  box.addEventListener('close', forget);
  // The page's content security policy forbids to send a form anywhere.
  $('login-form').addEventListener('submit', (e) => {
    e.preventDefault();
    const credential = kind() === 'token' ? bearer($('login-token').value) : basic($('login-user').value, $('login-password').value);
    if (!credential) {
      setText($('login-why'), 'That is no token: letters, digits and -._~+/ are.');
      first().focus();
      return;
    }
    setText($('login-why'), 'Asking …');
    keep(credential);
    changed(credential);
  });
  button.addEventListener('click', () => {
    if (!authorization()) {
      box.showModal();
      first().focus();
      return;
    }
    keep('');
    // The data that was read with it goes too.
    location.reload();
  });
  show();
  label();

  return {
    // needed says that a request was refused: challenge is its WWW-Authenticate,
    // tried the credential that it had.
    needed(challenge, tried) {
      // A newer one may be on its way.
      if (tried !== authorization()) return;
      keep('');
      box.dataset.needed = 'true';
      const takes = schemes(challenge);
      // Where only one is taken there is nothing to choose.
      $('login-kind').hidden = takes.bearer !== takes.basic;
      if (takes.bearer !== takes.basic) box.querySelector(`[value="${takes.basic ? 'password' : 'token'}"]`).checked = true;
      show();
      setText($('login-why'), tried ? 'The gateway does not take that.' : '');
      label();
      if (!box.open) box.showModal();
      first().focus();
      first().select();
    },
    // accepted says that the gateway answers.
    accepted() {
      if (box.open) box.close();
      label();
    },
  };
}
