--[[ gate_opens: wakes a worker if a call opens the queue's gate.

Uses: gate(gate_is_shut) wake(read_wake wake_needed)
]]

local was_shut

local function reset()
  was_shut = false
end

--- Note whether the gate is open, before the call changes anything.
local function note_gate()
  was_shut = gate_is_shut()
  read_wake()
end

--- Wake a worker if the gate is open now and was not before. Call this after all changes.
local function wake_if_gate_opens()
  if was_shut and not gate_is_shut() then
    wake_needed()
  end
end
