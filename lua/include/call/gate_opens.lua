--[[ gate_opens: whether a call opens the queue's gate; then a worker is woken.

Uses: gate(gate_is_shut) wake(read_wake wake_needed)
]]

local was_shut

local function reset()
  was_shut = false
end

--- Note whether the gate is open before the call changes anything.
local function note_gate()
  was_shut = gate_is_shut()
  read_wake()
end

--- Everything is changed.
local function wake_if_gate_opens()
  if was_shut and not gate_is_shut() then
    wake_needed()
  end
end
